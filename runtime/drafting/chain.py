"""Chain drafting: one token after the other, up to γ, stopped by the controller.

The draft's cache holds committed tokens; within a round its scratch holds the drafted ones. Shape suffix: V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.controllers import Session
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root
from runtime.adapter import LanguageModel
from runtime.decoding.clock import PhaseClock
from runtime.decoding.request import Request
from runtime.laws import processed_law
from runtime.randomness import Chance
from runtime.tree import EMPTY_TREE, TokenTree, chain_tree


@dataclass(frozen=True)
class ChainConfig:
    """``gamma``: most tokens per round. ``draft_temperature``: ``None`` drafts at the target's temperature and filters."""

    gamma: int = 5
    draft_temperature: float | None = None

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise ValueError(f"gamma must be >= 1, got {self.gamma}.")

    def settings(self, target: SamplingSettings) -> SamplingSettings:
        """The settings drafts are drawn with."""
        if self.draft_temperature is None:
            return target
        return SamplingSettings(self.draft_temperature, target.top_k, target.top_p)


class ChainDraft:
    """One request's draft model state. Committed tokens the cache does not hold yet are fed at the start of a round."""

    def __init__(
        self, config: ChainConfig, model: LanguageModel, vocabulary_size: int, request: Request, randomness: Chance
    ) -> None:
        self._config = config
        self._vocabulary_size = vocabulary_size
        self._settings = config.settings(request.settings)
        self._eos_tokens = request.eos_tokens
        self._randomness = randomness
        self._state = model.open(request.max_length)
        self._num_scratch = 0
        self._uncached: list[int] = []

    def prefill(self, prompt: list[int], newest: int) -> None:
        """Commit the prompt; ``newest`` is the first emitted token."""
        self._state.forward(prompt, last=1)
        self._state.keep(range(len(prompt)))
        self._uncached = [newest]

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> tuple[TokenTree, list[NextLaw]]:
        """Draw up to ``cap`` tokens; ends early where the session says so and after an end-of-sequence token."""
        tokens: list[Tensor] = []
        laws: list[NextLaw] = []
        while len(tokens) < cap:
            law = self._next_law(root, tokens)
            clock.lap("draft")
            stop = bool(session.stop_before(law))
            clock.lap("controller")
            if stop:
                break
            token = law.probs_V.argmax() if self._settings.greedy else self._randomness.categorical(law.probs_V)
            tokens.append(token)
            laws.append(law)
            ended = int(token) in self._eos_tokens
            clock.lap("draft")
            stop = bool(session.stop_after(DrawnToken(law, token)))
            clock.lap("controller")
            if stop or ended:
                break
        tree = self._tree(tokens, laws)
        clock.lap("draft")
        return tree, laws

    def commit(self, accepted: list[int], newest: int) -> None:
        """Keep the ``accepted`` drafted tokens' cache rows; ``newest`` is the token the target added."""
        cached = min(len(accepted), self._num_scratch)
        self._state.keep(range(cached))
        self._num_scratch = 0
        self._uncached += [*accepted[cached:], newest]

    def _next_law(self, root: Root, tokens: list[Tensor]) -> NextLaw:
        if tokens:
            logits = self._state.forward(tokens[-1].reshape(1)).logits[-1]
            self._num_scratch += 1
        else:
            logits = self._state.forward(self._uncached, last=1).logits[-1]
            self._state.keep(range(len(self._uncached)))
            self._uncached = []
        logits_V = fit_vocabulary(logits, self._vocabulary_size)
        return NextLaw(root, self._settings, len(tokens), logits_V, processed_law(logits_V, self._settings))

    def _tree(self, tokens: list[Tensor], laws: list[NextLaw]) -> TokenTree:
        if not tokens:
            return EMPTY_TREE
        rows = [law.probs_V for law in laws]
        return chain_tree(torch.stack(tokens), torch.stack([*rows, torch.zeros_like(rows[0])]))


def fit_vocabulary(logits_V: Tensor, size: int) -> Tensor:
    """A draft's logits on the target's vocabulary: missing ids are impossible, surplus (padding) ids are dropped."""
    if len(logits_V) == size:
        return logits_V
    if len(logits_V) > size:
        return logits_V[:size]
    return torch.nn.functional.pad(logits_V, (0, size - len(logits_V)), value=-torch.inf)
