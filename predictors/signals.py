"""Signals that a controller may see, as types (specification: predictability).

A chain verified with min(1, p/q) is lossless only if the decision to submit token i is taken before it is drawn. So each
decision gets an object with what was known at that moment and nothing later:

    source(root)        the committed prefix: target states on it, the past rounds, what a lookup would propose
    plan(root)          the same
    tree(tree_root)     also the draft's distribution at the root, and both models' views of the newest token
    stop_before(laws)   also the draft's distributions up to the next token's, and the tokens drafted so far
    stop_after(drawn)   also the token just drawn - which is kept and verified whatever is decided

Shape suffixes: V vocabulary, K tapped layers, D hidden size, E embedding size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from predictors.lookup import Found
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings

LEAST_LOG = -16.0  # that a drawn token's probability is cut at


@dataclass(frozen=True)
class Root:
    """State before a round drafts."""

    position: int  # committed tokens
    cap: int  # the most tokens that the drafter would draft
    settings: SamplingSettings
    previous: RoundRecord | None  # the last finished round; none right after the prefill
    hidden_KD: Tensor | None = None  # of the target, at the row whose logits produced the newest token, if it is tapped
    embedding_E: Tensor | None = None  # that token's input embedding, likewise
    probs_V: Tensor | None = None  # the target's processed distribution there, if one was computed
    found: Found | None = None  # what a drafter with a lookup could propose here without a model


@dataclass(eq=False)
class NextLaw:
    """The draft's distribution of the next token, before it is drawn.

    ``confidence`` and ``entropy`` (nats) come from the temperature-1, unfiltered softmax; ``law_entropy`` from the processed
    distribution the token will be drawn from. All are 0-d tensors, computed when read.
    """

    root: Root
    settings: SamplingSettings  # the draft's
    drafted: int  # tokens before it
    logits_V: Tensor
    probs_V: Tensor
    hidden_KD: Tensor | None = None  # the draft's at the row of these logits, if it is tapped: after the last token

    @cached_property
    def unit_probs_V(self) -> Tensor:
        """Probabilities [V] of the temperature-1, unfiltered softmax."""
        if self.settings.unfiltered:
            return self.probs_V
        return torch.softmax(self.logits_V.to(self.probs_V.dtype), dim=-1)

    @cached_property
    def confidence(self) -> Tensor:
        return self.unit_probs_V.max()

    @cached_property
    def entropy(self) -> Tensor:
        return _entropy(self.unit_probs_V)

    @cached_property
    def law_entropy(self) -> Tensor:
        return _entropy(self.probs_V)

    def likeliest(self, top: int) -> Tensor:
        """Return the ``top`` largest probabilities [T] at temperature 1 in float32, descending; zeros where there are fewer."""
        largest = self.unit_probs_V.topk(min(top, len(self.unit_probs_V))).values.float()
        return torch.nn.functional.pad(largest, (0, top - len(largest)))


@dataclass(frozen=True)
class BothModels:
    """Predictions of both models at the newest token."""

    target_probs_V: Tensor  # processed, in front of it: what it was drawn from
    draft_probs_V: Tensor  # and that which it might have been drawn from
    draft_hidden_2KD: Tensor | None = None  # in front of it and after it, if the draft is tapped


@dataclass(eq=False)
class TreeRoot:
    """A root before any token of its tree is drawn: the draft's ``law`` there, and, computed when read, ``models``."""

    law: NextLaw
    look: Callable[[], BothModels]

    @property
    def root(self) -> Root:
        return self.law.root

    @cached_property
    def models(self) -> BothModels:
        return self.look()


class TokenNumbers(NamedTuple):
    """Logs of the largest probability and of the drawn token's own, at temperature 1, cut at `LEAST_LOG`."""

    log_top: Any
    log_own: Any


class DrawnToken:
    """A token that was just drawn and will be verified, with the distribution it came from."""

    def __init__(self, law: NextLaw, token: Tensor) -> None:
        self.law = law
        self.token = token
        self.drafted = law.drafted + 1

    @cached_property
    def probability(self) -> Tensor:
        """Probability of the token under the distribution it was drawn from."""
        return _at(self.law.probs_V, self.token)

    @cached_property
    def unit_probability(self) -> Tensor:
        """Probability of the token under the draft's temperature-1, unfiltered softmax."""
        return _at(self.law.unit_probs_V, self.token)

    def numbers(self, run: Callable[[Tensor], Tensor]) -> TokenNumbers:
        """Read both logs on the host: by few operations if logits are there, else by ``run`` of `token_numbers` and one read."""
        logits_V = self.law.logits_V
        if logits_V.is_cpu:
            logs_V = logits_V.log_softmax(-1, torch.float32)
            own = logs_V[int(self.token)].item()
            log_own = own if own > LEAST_LOG else LEAST_LOG
            return TokenNumbers(log_own if self.law.settings.read_off else logs_V.max().item(), log_own)
        floats_V = logits_V.float()
        return TokenNumbers(*run(torch.cat([floats_V, self.token.reshape(1).to(floats_V)])).tolist())


def token_numbers(logits_and_token: Tensor) -> Tensor:
    """Compute `TokenNumbers` [2] of logits [V], after which the token stands as a number."""
    logits_V, token = logits_and_token[:-1], logits_and_token[-1:].long()
    logs_V = torch.log_softmax(logits_V, dim=-1)
    return torch.stack([logs_V.max(), logs_V.index_select(0, token)[0].clamp(min=LEAST_LOG)])


def _entropy(probs_V: Tensor) -> Tensor:
    return torch.special.entr(probs_V).sum()


def _at(law_V: Tensor, token: Tensor) -> Tensor:
    """Return the probability [] of a 0-d ``token``, which is not read (as an index it would be)."""
    return law_V.index_select(0, token.reshape(1).to(law_V.device)).squeeze(0)
