"""Small checks beside the measurement: what the loop costs beyond its passes, exactness, agreement of the forwards."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pipelines.measuring.arm_builder import TimedArm
from pipelines.measuring.bare_replay import record
from pipelines.measuring.exactness import format_of, greedy_differences
from pipelines.measuring.forward_agreement import forward_agreement
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.seeds import seed_of
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness
from runtime.causal_model import CausalLanguageModel
from runtime.decoding.sequential import SequentialDecoder
from runtime.latency.cells import seconds_of


def loop_rows(
    prompts: Iterable[Prompt],
    arms: Mapping[float, Sequence[TimedArm]],
    max_new_tokens: int,
    repeats: int,
    once: Callable[[str, Callable[[], Rows]], Rows],
) -> Rows:
    """Seconds of a decode in the ``loop``, and of its model calls alone (``passes``), in random order, for the ``arms`` of every
    temperature; ``once(key, measure)`` keeps what is finished."""

    def measure(key: str, prompt: Prompt, temperature: float, arm: TimedArm) -> Rows:
        assert isinstance(arm.decoder, SequentialDecoder)
        decoder, device = arm.decoder, arm.decoder.pair.target.device

        def options() -> dict[str, Any]:
            randomness = Randomness(seed_of(key))
            return {"max_new_tokens": max_new_tokens, "temperature": temperature, "randomness": randomness}

        work = {
            "loop": lambda: decoder.generate(prompt.tokens, **options()),
            "passes": record(decoder, prompt.tokens, **options()),
        }
        order = random.Random(key)
        who = {"prompt": prompt.id, "document": prompt.document, "temperature": temperature, "arm": arm.name}
        return [
            {
                **who,
                "repeat": repeat,
                **{kind: seconds_of(work[kind], device) for kind in order.sample(sorted(work), len(work))},
            }
            for repeat in range(repeats)
        ]

    rows: Rows = []
    for prompt in prompts:
        for temperature, some in arms.items():
            for arm in some:
                key = f"loop/{prompt.id}/{SamplingSettings(temperature).name}/{arm.name}"
                rows += once(key, partial(measure, key, prompt, temperature, arm))
    return rows


def exactness_rows(
    pair: ModelPair, prompts: Iterable[Sequence[int]], arms: Mapping[str, TimedArm], max_new_tokens: int
) -> Rows:
    """Every arm of ours against Hugging Face's greedy ``generate`` over the same weights (`pipelines.measuring.exactness`).

    Returns
    -------
    list
        By arm: ``exact_float32``, or of whatever format the ``pair`` has, and each prompt's first position that is wrong.
    """
    ours = {name: arm.decoder for name, arm in arms.items() if arm.decoder is not None}
    found = greedy_differences(pair, ours, prompts, max_new_tokens)
    return [
        {"arm": name, f"exact_{format_of(pair)}": all(place is None for place in places), "differs": places}
        for name, places in found.items()
    ]


def agreement(pair: ModelPair, prompts: Sequence[list[int]]) -> dict[str, dict[str, float]]:
    """By model that runs by a compact forward, how far its logits are from Hugging Face's in float32."""
    return {
        name: forward_agreement(model, prompts)
        for name, model in (("target", pair.target), ("draft", pair.draft))
        if isinstance(model, CausalLanguageModel) and model.forward != "hugging_face"
    }
