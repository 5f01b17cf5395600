"""Greedy texts in float32, compared with those of an independent reference."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipelines.measuring.arms import decoder_arm, hugging_face_arm
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair

GREEDY = SamplingSettings(0.0)


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """The first position where two token sequences differ, ``None`` if they are equal."""
    for position, (token, other) in enumerate(zip(tokens, others, strict=False)):
        if token != other:
            return position
    return None if len(tokens) == len(others) else min(len(tokens), len(others))


def greedy_differences(
    pair: ModelPair, decoders: Mapping[str, Decoder], prompts: Iterable[Sequence[int]], max_new_tokens: int
) -> dict[str, list[int | None]]:
    """By decoder, where each prompt's greedy text first differs from Hugging Face's ``generate`` (all in float32)."""
    reference = hugging_face_arm(pair.target.model, None, max_new_tokens)  # type: ignore[attr-defined]
    expected = [(list(prompt), reference(list(prompt), GREEDY, 0).tokens) for prompt in prompts]
    arms = {name: decoder_arm(decoder, max_new_tokens) for name, decoder in decoders.items()}
    return {
        name: [first_difference(decode(prompt, GREEDY, 0).tokens, tokens) for prompt, tokens in expected]
        for name, decode in arms.items()
    }


def load_float32(target: str, draft: str, tokenizer: str | Path) -> ModelPair:
    """The pair in float32, where one-row and many-row passes round alike often enough for greedy text to be equal."""
    return ModelPair.load(target=target, draft=draft, dtype="float32", tokenizer=tokenizer)
