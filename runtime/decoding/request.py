"""A decoding request, checked once at the door."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.pair import ModelPair
from runtime.randomness import Chance


@dataclass(frozen=True)
class Request:
    """One checked request. ``layers`` are tapped on the target; ``observe`` keeps each round's evidence."""

    prompt: list[int]
    max_new_tokens: int
    settings: SamplingSettings
    randomness: Chance
    eos_tokens: frozenset[int]
    layers: tuple[int, ...]
    observe: bool

    @property
    def max_length(self) -> int:
        """Most tokens the request can hold, prompt and output together."""
        return len(self.prompt) + self.max_new_tokens

    def cut(self, tokens: list[int], emitted: int) -> tuple[list[int], bool]:
        """``tokens`` up to the first end-of-sequence token and the remaining budget; whether generation ends with them."""
        for index, token in enumerate(tokens):
            if token in self.eos_tokens:
                tokens = tokens[: index + 1]
                break
        tokens = tokens[: self.max_new_tokens - emitted]
        done = emitted + len(tokens) == self.max_new_tokens or tokens[-1] in self.eos_tokens
        return tokens, done


def checked_prompt(prompt_ids: Sequence[int] | Tensor, pair: ModelPair, max_new_tokens: int) -> list[int]:
    ids = torch.as_tensor(prompt_ids)
    if ids.dim() != 1:
        raise ValueError(f"prompt_ids must be one sequence (1-D), got shape {tuple(ids.shape)}; one request at a time.")
    prompt: list[int] = [int(token) for token in ids.tolist()]
    if not prompt:
        raise ValueError("the prompt is empty: pass at least one token (for example the beginning-of-sequence token).")
    outside = [token for token in prompt if not 0 <= token < pair.target.vocabulary_size]
    if outside:
        raise ValueError(
            f"prompt token {outside[0]} is outside the target's vocabulary of {pair.target.vocabulary_size}."
        )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be >= 1, got {max_new_tokens}.")
    if len(prompt) + max_new_tokens > pair.context_limit:
        raise ValueError(
            f"the prompt's {len(prompt)} tokens and max_new_tokens={max_new_tokens} do not fit the pair's context of "
            f"{pair.context_limit}. Shorten the prompt or pass max_new_tokens <= {max(0, pair.context_limit - len(prompt))}."
        )
    return prompt
