"""A text of the target to lead decoders along, with the target's distributions at all its positions.

Row t is the position of token y_t of the continuation, after the prompt and y_0 … y_{t-1}. Shape suffixes: R rows (T tokens and
the position after them), V vocabulary.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.adapter import LanguageModel
from runtime.laws import processed_law
from runtime.leading.logits import Logits
from runtime.pair import ModelPair


@dataclass(frozen=True, eq=False)
class GivenText:
    """``tokens`` that ``target`` continued ``prompt`` with under ``settings``, within ``max_new_tokens``: they fill the budget,
    or end with the first of ``eos_tokens``. ``probs_RV`` are the target's probabilities before each token, and after the last;
    ``known``: the logits that plans have asked models for."""

    target: LanguageModel
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    settings: SamplingSettings
    max_new_tokens: int
    eos_tokens: frozenset[int]
    probs_RV: Tensor
    known: list[Logits] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls,
        model: ModelPair | LanguageModel,
        prompt: Sequence[int],
        tokens: Sequence[int],
        settings: SamplingSettings,
        max_new_tokens: int | None = None,
        eos_tokens: Collection[int] | None = None,
    ) -> "GivenText":
        """The text ``tokens``, whose probabilities one pass of the target gives.

        Parameters
        ----------
        model
            The target, or a pair that has it.
        prompt, tokens
            Token ids; of both at least one.
        settings
            How the tokens were sampled.
        max_new_tokens
            The budget that they were decoded with; by default their number.
        eos_tokens
            Tokens that end the generation; by default the target's own.

        Raises
        ------
        ValueError
            If the target cannot have continued like this.
        """
        target = model.target if isinstance(model, ModelPair) else model
        budget = len(tokens) if max_new_tokens is None else max_new_tokens
        ends = target.eos_tokens if eos_tokens is None else eos_tokens
        _require_whole(tokens, budget, ends)
        known = Logits(target, tuple(prompt), tuple(tokens), budget)
        probs_RV = processed_law(known.along_RV, settings)
        if not settings.greedy:
            _require_possible(tokens, probs_RV)
        return cls(target, tuple(prompt), tuple(tokens), settings, budget, frozenset(ends), probs_RV, [known])

    def logits(self, model: LanguageModel) -> Logits:
        """What ``model``, the target or a draft, says of this text: all plans of it share what one has asked for."""
        for one in self.known:
            if one.model is model:
                return one
        self.known.append(Logits(model, self.prompt, self.tokens, self.max_new_tokens))
        return self.known[-1]

    @property
    def options(self) -> dict[str, Any]:
        """What `Decoder.generate` is given beside prompt and randomness."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "eos_token_id": sorted(self.eos_tokens),
            **dataclasses.asdict(self.settings),
        }


def _require_whole(tokens: Sequence[int], budget: int, eos_tokens: Collection[int]) -> None:
    """`ValueError` unless a generation of at most ``budget`` tokens may end with ``tokens``."""
    ended = [place for place, token in enumerate(tokens) if token in eos_tokens]
    if ended and ended[0] < len(tokens) - 1:
        raise ValueError(
            f"the text goes on after token {tokens[ended[0]]} at position {ended[0]}, which ends a generation. Cut it there."
        )
    if not tokens or (len(tokens) < budget and not ended) or len(tokens) > budget:
        raise ValueError(
            f"a text of {len(tokens)} tokens neither fills its budget of {budget} nor ends with one of {sorted(eos_tokens)}. "
            "Pass the max_new_tokens and eos_tokens that it was decoded with."
        )


def _require_possible(tokens: Sequence[int], probs_RV: Tensor) -> None:
    """`ValueError` if the target gives one of ``tokens`` no probability."""
    chosen = torch.tensor(tokens, device=probs_RV.device).unsqueeze(1)
    likely: list[float] = probs_RV[:-1].gather(1, chosen).squeeze(1).tolist()
    for row, (token, probability) in enumerate(zip(tokens, likely, strict=True)):
        if not probability > 0:
            raise ValueError(
                f"token {token} at position {row} of the text has probability {probability} under the target. Record the text "
                "with the same weights, number format and sampling settings."
            )
