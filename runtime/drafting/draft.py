"""What all drafters share: a configuration that says how it draws, and one request's draft; most hold a model's state.

The draft's cache holds committed tokens; within a round its scratch holds the drafted tokens that were fed. Shape suffixes:
... any rows, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from predictors.controllers import Session
from predictors.signals import BothModels, NextLaw, Root, TreeRoot
from runtime.adapter import Forward, LanguageModel
from runtime.clock import PhaseClock
from runtime.drafting.drafted import Drafted
from runtime.drafting.sampler import sampler_for
from runtime.drafting.views import Row, Views, rows_of
from runtime.laws import processed_law
from runtime.prefill import cache_prompt
from runtime.request import Request
from runtime.tree import DraftLaw


class Drafter(Protocol):
    """A drafter's configuration.

    ``depth``: most levels per round. ``laws``: how its trees may be drawn, over all sampling settings. ``branches``: whether a
    tree may be more than a chain. ``needs_draft``: whether it needs a draft model.
    """

    @property
    def depth(self) -> int: ...

    @property
    def laws(self) -> frozenset[DraftLaw]: ...

    @property
    def branches(self) -> bool: ...

    @property
    def needs_draft(self) -> bool: ...

    def open(self, model: LanguageModel, request: Request) -> "Draft":
        """One request's draft over the draft ``model``, with laws on the request's vocabulary and a source of chance that is the
        draft's own; one that needs no model is made for the device of the target, which ``model`` is then."""
        ...


class Draft(Protocol):
    """One request's draft. ``passes`` of its model since the prefill are counted."""

    @property
    def passes(self) -> int: ...

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draw a tree of at most ``cap`` levels."""
        ...

    def prefill(self, prompt: list[int], newest: Sequence[int]) -> None:
        """Take over the prompt; ``newest`` are the tokens emitted after it."""
        ...

    def commit(self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int]) -> None:
        """Keep the ``accepted`` tokens of a ``path`` of nodes; then come ``newest`` tokens."""
        ...


class ModelDraft(ABC):
    """One request's draft model state. Committed tokens the cache does not hold yet are fed at the start of a round."""

    passes = 0

    def __init__(self, model: LanguageModel, request: Request, draft_temperature: float | None) -> None:
        settings = request.settings
        self._settings = settings if draft_temperature is None else replace(settings, temperature=draft_temperature)
        self._vocabulary_size = request.vocabulary_size
        self._eos_tokens = request.eos_tokens
        self._randomness = request.randomness
        self._state = model.open(request.max_length, request.draft_layers)
        self._sampler = sampler_for(self._settings, self._randomness, model.programs)
        self._views = Views() if request.views else None
        self._scratch: dict[int, int] = {}  # fed nodes of the tree, by their place in the model's scratch
        self._uncached: list[int] = []

    @abstractmethod
    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draw a tree of at most ``cap`` levels."""

    def prefill(self, prompt: list[int], newest: Sequence[int]) -> None:
        """Commit the prompt; ``newest`` are the tokens emitted after it."""
        out = cache_prompt(self._state, prompt)
        self._uncached = list(newest)
        if self._views is not None:
            self._views.committed(out)

    def commit(self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int]) -> None:
        """Keep the cache rows of the accepted ``path`` of nodes, whose tokens are ``accepted``; then come ``newest`` tokens."""
        fed = [self._scratch[node] for node in path if node in self._scratch]
        self._state.keep(fed)
        if self._views is not None:
            self._views.keep(fed)
        self._scratch = {}
        self._uncached += [*accepted[len(fed) :], *newest]

    def _feed_uncached(self, then: Sequence[int] = ()) -> Row:
        """Commit the newest tokens; the row of the last one. ``then``, the tokens of nodes 0, 1, …, go through the same pass, and
        the row is that of the last of them."""
        assert not then or self._views is None, "controllers of trees read views"
        self.passes += 1
        tokens = [*self._uncached, *then]
        out = self._state.forward(tokens, last=1 if self._views is None else min(2, len(tokens)))
        self._state.keep(range(len(tokens)), pending=len(then))
        self._scratch |= {node: node for node in range(len(then))}
        self._uncached = []
        if self._views is not None:
            self._views.committed(out)
        return self._rows(out)[-1]

    def _feed(self, nodes: Sequence[int], tokens: Tensor, parents: Sequence[int]) -> list[Row]:
        """Feed nodes of the tree in one pass; a row for each. Their parents (-1: the root) were fed before."""
        places = [self._scratch[parent] if parent >= 0 else -1 for parent in parents]
        self._scratch |= {node: len(self._scratch) + place for place, node in enumerate(nodes)}
        self.passes += 1
        out = self._state.forward(tokens, places)
        if self._views is not None:
            self._views.drafted(out)
        return self._rows(out)

    def _rows(self, out: Forward) -> list[Row]:
        """Rows of a pass, with logits on the target's vocabulary."""
        return rows_of(Forward(fit_vocabulary(out.logits, self._vocabulary_size), out.hidden_NKD))

    def _tree_root(self, law: NextLaw) -> TreeRoot:
        """The round's root as a controller that chooses trees sees it, ``law`` being the draft's there."""
        return TreeRoot(law, lambda: self._both_models(law.root))

    def _both_models(self, root: Root) -> BothModels:
        if self._views is None or root.probs_V is None:
            raise ValueError(
                "this controller reads what both models said, and the decoder keeps nothing. Use build_decoder."
            )
        logits_V, hidden_2KD = self._views.newest()
        draft_V = processed_law(fit_vocabulary(logits_V, self._vocabulary_size), self._settings)
        return BothModels(root.probs_V.to(draft_V.device), draft_V, hidden_2KD)

    def _law(self, root: Root, depth: int, row: Row) -> NextLaw:
        logits_V, hidden_KD = row
        return NextLaw(root, self._settings, depth, logits_V, self._sampler.law(logits_V), hidden_KD)


def fit_vocabulary(logits: Tensor, size: int) -> Tensor:
    """A draft's logits [..., V] on the target's vocabulary: missing ids are impossible, surplus (padding) ids are dropped."""
    own = logits.shape[-1]
    if own == size:
        return logits
    if own > size:
        return logits[..., :size]
    return torch.nn.functional.pad(logits, (0, size - own), value=-torch.inf)
