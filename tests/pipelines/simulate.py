"""Show what the gate would do with challengers of known gain: coverage of its interval, and how often each verdict falls.

    python -m tests.pipelines.simulate --runs 400

Documents, prompts and noise are those of a trial of a small pair. Two tables are printed: coverage of the 95 % interval, on the
clock alone and with tokens from replay; and by true gain the share of challengers that pass, are refused, and stay inconclusive.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tqdm import tqdm

from pipelines.gate.evidence import compared
from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import INCONCLUSIVE, PASSED, REFUSED, judge
from pipelines.measuring.gain import TimedDecodes
from tests.pipelines.hand_made_evidence import GOOD

CHALLENGER, PLAIN = "challenger", "autoregressive"
TOKENS = 48
WRONG = np.array([1.2, 0.9, 1.0, 1.1])  # factors that the profile of a made-up machine lacks, arms in turn


@dataclass(frozen=True)
class World:
    """What is measured, and how noisy it is."""

    documents: Mapping[str, int] = field(default_factory=lambda: {"code": 87, "prose": 21, "tables": 11})  # of 2 texts
    prompts: int = 30  # timed ones, spread over slices by their documents
    noise: Mapping[float, float] = field(
        default_factory=lambda: {0.0: 0.10, 1.0: 0.16}
    )  # of a pair's log ratio, in all
    document_noise: float = 0.03  # its part by document
    known: float = 0.5  # share of the rest that comes from what is accepted, which the profile knows; else the clock's
    block_noise: float = 0.1  # deviations of what arms share
    text_noise: float = 0.3
    rates: Mapping[str, float] = field(  # of the rivals, relative to the closest
        default_factory=lambda: {PLAIN: 0.6, "chain-2": 0.9, "chain-3": 0.97, "chain-4": 1.0, "chain-6": 0.99}
    )


def trial(world: World, gain: float, seed: int, replayed: bool = True) -> TimedDecodes:
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
    return TimedDecodes.of(decodes, texts if replayed else ())


RIVAL = "chain-4"  # the closest
WORLDS = {
    "usual": World(),
    "quiet": World(noise={0.0: 0.05, 1.0: 0.09}),
    "noisy": World(noise={0.0: 0.14, 1.0: 0.22}),
    "one rival": World(rates={PLAIN: 0.6, RIVAL: 1.0}),
}
GAINS = (0.0, 0.02, 0.04, 0.05, 0.08)


def coverage(world: World, true_gain: float, seeds: Iterable[int], replayed: bool) -> tuple[float, float]:
    """Share of trials whose 95 % interval holds the true gain, and the mean half-width."""
    ends = [trial(world, true_gain, seed, replayed).gain(CHALLENGER, RIVAL).interval() for seed in seeds]
    found = [(one["low"] <= true_gain <= one["high"], (one["high"] - one["low"]) / 2) for one in ends]
    share, width = np.mean(found, axis=0)
    return share, width


def verdict(world: World, true_gain: float, seed: int, bounds: Bounds, replayed: bool = True) -> str:
    """The gate's verdict on one challenger."""
    found = compared(trial(world, true_gain, seed, replayed), bounds)
    return judge(replace(GOOD, **vars(found)), bounds).outcome


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="challengers of every row (default: %(default)s)")
    parser.add_argument("--world", choices=WORLDS, default="usual", help="how noisy (default: %(default)s)")
    parser.add_argument("--clock", action="store_true", help="let verdicts rest on the clock alone")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.runs < 1:
        raise ValueError(f"--runs must be >= 1, got {args.runs}.")
    world, seeds = WORLDS[args.world], range(args.seed, args.seed + args.runs)
    print("| true gain | estimate rests on | 95 % interval covers | half-width |\n|---|---|---|---|")
    for true_gain in (0.0, 0.05):
        for replayed, name in ((False, "clock"), (True, "tokens from replay")):
            share, width = coverage(world, true_gain, tqdm(seeds, name, leave=False), replayed)
            print(f"| {true_gain:+.0%} | {name} | {share:.1%} | {width:.1%} |")
    print("\n| true gain | passed | refused | inconclusive |\n|---|---|---|---|")
    for true_gain in GAINS:
        shown = tqdm(seeds, f"{true_gain:+.0%}", leave=False)
        outcomes = Counter(verdict(world, true_gain, seed, Bounds(), not args.clock) for seed in shown)
        shares = (f"{outcomes[one] / args.runs:.1%}" for one in (PASSED, REFUSED, INCONCLUSIVE))
        print(f"| {true_gain:+.0%} | " + " | ".join(shares) + " |")


if __name__ == "__main__":
    main()
