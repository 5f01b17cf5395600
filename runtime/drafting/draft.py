"""Base of all drafters: a configuration that tells how it draws, and one request's draft; most hold a model's state.

The draft's cache holds committed tokens; within a round its scratch holds the drafted tokens that were fed. Shape suffixes:
... any rows, V vocabulary, K tapped layers, D hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from predictors.config import Checked
from predictors.controllers import Session
from predictors.signals import BothModels, NextLaw, Root
from runtime.adapter import Forward, LanguageModel, ReadingState, Row, cache_prompt, features_of
from runtime.device import PhaseClock
from runtime.drafting.drafted import Drafted
from runtime.drafting.sampler import sampler_for
from runtime.laws import fit_vocabulary, processed_law, says_something
from runtime.request import Request
from runtime.tree import DraftLaw


class Drafter(Checked, ABC):
    """Base of drafters' configurations.

    ``depth``: most levels per round. ``laws``: how its trees may be drawn, over all sampling settings. ``branches``: whether a
    tree may be more than a chain. ``needs_draft``: whether it needs a draft model.
    """

    needs_draft = True

    @property
    @abstractmethod
    def depth(self) -> int: ...

    @property
    def laws(self) -> frozenset[DraftLaw]:
        return frozenset({DraftLaw.IID})

    @property
    def branches(self) -> bool:
        return False

    @abstractmethod
    def open(self, model: LanguageModel, request: Request) -> "Draft":
        """Open one request's draft over the draft ``model``, with distributions on the request's vocabulary and the draft's own
        source of chance; a draft that needs no model is made for the device of the target, which ``model`` is then."""


class Draft(ABC):
    """One request's draft: it proposes a tree every round and learns what was accepted."""

    @property
    def passes(self) -> int:
        """Passes of the draft model since the prefill."""
        return 0

    @abstractmethod
    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draw a tree of at most ``cap`` levels."""

    @abstractmethod
    def prefill(self, prompt: list[int], newest: Sequence[int], hidden_NKD: Tensor | None = None) -> None:
        """Take over the prompt; ``newest`` are the tokens emitted after it. ``hidden_NKD``: the target's states along the prompt,
        where the model reads any."""

    @abstractmethod
    def commit(
        self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int], hidden_NKD: Tensor | None = None
    ) -> None:
        """Keep the ``accepted`` tokens of a ``path`` of nodes; then come ``newest`` tokens. ``hidden_NKD``: the target's states
        in front of all of them, where the model reads any."""


class ModelDraft(Draft):
    """One request's draft model state. Committed tokens the cache does not hold yet are fed at the start of a round."""

    passes = 0
    _silent: Sequence[bool] = ()  # which rows of its last pass have no distribution, where the host may look

    def __init__(self, model: LanguageModel, request: Request, draft_temperature: float | None) -> None:
        self._settings = request.settings
        if draft_temperature is not None and request.perturbation is None:
            self._settings = replace(self._settings, temperature=draft_temperature)
        self._vocabulary_size = request.vocabulary_size
        self._eos_tokens = request.eos_tokens
        self._randomness = request.randomness
        self._state = request.open(model, request.draft_layers, draft_temperature)
        self._reads_states = bool(features_of(model))
        self._sampler = sampler_for(self._settings, self._randomness, model.programs)
        self._views = Views() if request.views else None
        self._scratch: dict[int, int] = {}  # fed nodes of the tree, by their index in the model's scratch
        self._uncached: list[int] = []

    def prefill(self, prompt: list[int], newest: Sequence[int], hidden_NKD: Tensor | None = None) -> None:
        self._offer(hidden_NKD)
        cached = prompt[1:] if self._reads_states else prompt  # no state is in front of the first token
        if cached:
            out = cache_prompt(self._state, cached)
            if self._views is not None:
                self._views.committed(out)
        self._uncached = list(newest)

    def commit(
        self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int], hidden_NKD: Tensor | None = None
    ) -> None:
        """Keep the cache rows of accepted nodes that were fed, and queue the others to be fed; a model that reads the target's
        states runs over all of them again."""
        self._offer(hidden_NKD)
        kept = [] if self._reads_states else path
        fed = [self._scratch[node] for node in kept if node in self._scratch]
        self._state.keep(fed)
        if self._views is not None:
            self._views.keep(fed)
        self._scratch = {}
        self._uncached += [*accepted[len(fed) :], *newest]

    def _offer(self, hidden_NKD: Tensor | None) -> None:
        if hidden_NKD is not None:
            cast(ReadingState, self._state).offer(hidden_NKD)

    def _feed_uncached(self, then: Sequence[int] = ()) -> Row:
        """Commit the newest tokens; return the row of the last one. ``then``, the tokens of nodes 0, 1, …, go through the same
        pass, and the row is that of the last of them."""
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
        """Feed nodes of the tree in one pass; return a row for each. Their parents (-1: the root) were fed before."""
        places = [self._scratch[parent] if parent >= 0 else -1 for parent in parents]
        self._scratch |= {node: len(self._scratch) + place for place, node in enumerate(nodes)}
        self.passes += 1
        out = self._state.forward(tokens, places)
        if self._views is not None:
            self._views.drafted(out)
        return self._rows(out)

    def _rows(self, out: Forward) -> list[Row]:
        """Return the rows of a pass, with logits on the target's vocabulary. In a row without a distribution the draft predicts
        nothing: nothing is drawn from it where the host may look; elsewhere every token is as likely there."""
        logits = fit_vocabulary(out.logits, self._vocabulary_size)
        says = says_something(logits)
        self._silent = (~says).tolist() if self._sampler.reads else ()
        if not self._sampler.reads or any(self._silent):
            logits = logits.masked_fill(~says.unsqueeze(-1), 0.0)
        return Forward(logits, out.hidden_NKD).rows()

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


class Views:
    """Rows of the draft model that a controller reads: those of the last two committed tokens, and of the scratch that may follow
    them. They are remembered as they are computed: a pass for them alone would cost a draft step."""

    def __init__(self) -> None:
        self._committed: list[Row] = []
        self._scratch: list[Row] = []

    def committed(self, out: Forward) -> None:
        """Remember the rows committed by a pass, which has logits of at least the last two, or of all."""
        self._committed = [*self._committed, *out.rows()][-2:]

    def drafted(self, out: Forward) -> None:
        """Remember rows of scratch nodes, in the order in which they were fed."""
        self._scratch += out.rows()

    def keep(self, path: Sequence[int]) -> None:
        """Commit scratch rows ``path`` and drop the others."""
        self._committed = [*self._committed, *(self._scratch[place] for place in path)][-2:]
        self._scratch = []

    def newest(self) -> tuple[Tensor, Tensor | None]:
        """Return logits [V] in front of the newest token, and tapped hidden states [2, K, D] in front of it and after it (of a
        text whose first tokens were never fed, after it alone)."""
        (logits_V, before_KD), (_, behind_KD) = self._committed[0], self._committed[-1]
        return logits_V, None if before_KD is None or behind_KD is None else torch.stack([before_KD, behind_KD])
