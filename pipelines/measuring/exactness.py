"""Greedy text in float32 against an independent reference: the benchmark's own check that it times lossless decoders."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.measuring.arms import build_decoders, decoder_arm, hugging_face_arm
from predictors.sampling import SamplingSettings
from runtime import ModelPair

GREEDY = SamplingSettings(0.0)


def check_exactness(
    pair: ModelPair, prompts: Iterable[Sequence[int]], max_new_tokens: int, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Compare every decoder of `build_decoders` (``options``) with Hugging Face's greedy ``generate``, token for token.

    Returns
    -------
    list
        By arm: ``exact_float32``, and the first differing position of each prompt (``None`` where equal).
    """
    reference = hugging_face_arm(pair.target.model, None, max_new_tokens)  # type: ignore[attr-defined]
    expected = [(list(prompt), reference(list(prompt), GREEDY, 0).tokens) for prompt in prompts]
    rows = []
    for name, decoder in build_decoders(pair, **options).items():
        arm = decoder_arm(decoder, max_new_tokens)
        differences = [first_difference(arm(prompt, GREEDY, 0).tokens, tokens) for prompt, tokens in expected]
        rows.append({"arm": name, "exact_float32": not any(d is not None for d in differences), "differs": differences})
    return rows


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """The first position where two token sequences differ, ``None`` if they are equal."""
    for position, (token, other) in enumerate(zip(tokens, others, strict=False)):
        if token != other:
            return position
    return None if len(tokens) == len(others) else min(len(tokens), len(others))


def load_float32(target: str, draft: str, tokenizer: str | Path) -> ModelPair:
    """The pair in float32, where one-row and many-row passes round alike often enough for greedy text to be equal."""
    return ModelPair.load(target=target, draft=draft, dtype="float32", tokenizer=tokenizer)
