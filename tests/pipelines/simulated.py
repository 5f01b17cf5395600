"""Simulated trials: decodes, and what replay knows of them, of a challenger whose true gain is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pipelines.measuring.gain import Timed

CHALLENGER, PLAIN = "challenger", "autoregressive"
TOKENS = 48
WRONG = np.array([1.2, 0.9, 1.0, 1.1])  # factors that the profile of a made-up machine lacks, arms in turn


@dataclass(frozen=True)
class World:
    """What is measured, and how noisy it is.

    Parameters
    ----------
    documents
        Of the test share by slice, each with two recorded texts.
    prompts
        Timed ones, spread over slices by their documents.
    noise
        Deviation of a pair's log ratio on one prompt by temperature, everything included.
    document_noise, known
        Deviation of it by document, and the share of the remaining variance that comes from what is accepted, which the profile
        knows of every round; the rest is the clock's.
    block_noise, text_noise
        Deviations of what arms share.
    rates
        Of the rivals, relative to the closest.
    """

    documents: Mapping[str, int] = field(default_factory=lambda: {"code": 87, "prose": 21, "tables": 11})
    prompts: int = 30
    noise: Mapping[float, float] = field(default_factory=lambda: {0.0: 0.10, 1.0: 0.16})
    document_noise: float = 0.03
    known: float = 0.5
    block_noise: float = 0.1
    text_noise: float = 0.3
    rates: Mapping[str, float] = field(
        default_factory=lambda: {PLAIN: 0.6, "chain-2": 0.9, "chain-3": 0.97, "chain-4": 1.0, "chain-6": 0.99}
    )


def trial(world: World, gain: float, seed: int, replayed: bool = True) -> Timed:
    """One trial in a ``world``, of a challenger that truly gains ``gain`` over the closest rival; not ``replayed``: the clock
    alone is known. Above temperature 0 a timed decode is of a text of its own."""
    draw = np.random.default_rng([seed, 7])
    arms = [CHALLENGER, *world.rates]
    rates_A = np.array([1 + gain, *world.rates.values()])
    wrong_A = np.resize(WRONG, len(arms))
    documents = [(name, f"{name}/{number}") for name, count in world.documents.items() for number in range(count)]
    order = draw.permutation(len(documents))
    decodes, texts = [], []
    for heat, noise in world.noise.items():
        rest = max(noise**2 - world.document_noise**2, 0.0) / 2  # of one of two arms
        known, clock = np.sqrt(rest * world.known), np.sqrt(rest * (1 - world.known))

        def rounds(own_A, deviation, heat=heat):
            """Seconds of the rounds of one decode by arm, of mean 1 / rate."""
            log_A = deviation * draw.standard_normal(len(arms)) - deviation**2 / 2
            return np.exp(log_A + world.text_noise * draw.standard_normal()) * own_A / rates_A

        for turn, place in enumerate(order):
            of_slice, document = documents[place]
            own_A = np.ones(len(arms))
            own_A[0] = np.exp(world.document_noise * draw.standard_normal() - world.document_noise**2 / 2)
            for number in range(2):
                prompt, spent_A = f"{document}/{number}", rounds(own_A, known)
                where = {"slice": of_slice, "document": document, "prompt": prompt, "temperature": heat}
                texts += [
                    {**where, "arm": name, "tokens": TOKENS, "seconds": spent_A[arm] / wrong_A[arm]}
                    for arm, name in enumerate(arms)
                ]
                if number or turn >= world.prompts:
                    continue
                spent_A = rounds(own_A, known) if heat else spent_A
                log_A = (
                    clock * draw.standard_normal(len(arms)) - clock**2 / 2 + world.block_noise * draw.standard_normal()
                )
                decodes += [
                    {**where, "arm": name, "block": f"{prompt}/{heat:g}", "tokens": TOKENS}
                    | {"seconds": spent_A[arm] * np.exp(log_A[arm])}
                    | ({"profiled": spent_A[arm] / wrong_A[arm]} if replayed else {})
                    for arm, name in enumerate(arms)
                ]
    return Timed.of(decodes, texts if replayed else ())
