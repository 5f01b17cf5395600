"""What comparing greedy texts in float32 with an independent reference takes."""

from collections.abc import Sequence
from pathlib import Path

from predictors.sampling import SamplingSettings
from runtime import ModelPair

GREEDY = SamplingSettings(0.0)


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """The first position where two token sequences differ, ``None`` if they are equal."""
    for position, (token, other) in enumerate(zip(tokens, others, strict=False)):
        if token != other:
            return position
    return None if len(tokens) == len(others) else min(len(tokens), len(others))


def load_float32(target: str, draft: str, tokenizer: str | Path) -> ModelPair:
    """The pair in float32, where one-row and many-row passes round alike often enough for greedy text to be equal."""
    return ModelPair.load(target=target, draft=draft, dtype="float32", tokenizer=tokenizer)
