"""Every round that a decode of recorded texts could make, in arrays: policies for chains are replayed by table look-up.

A round that starts at row s drafts a fixed chain, of which `would` tokens are accepted, whatever came before it:

    rows emitted    min(min(would, submitted) + 1, length - s)

So a policy says once what it drafts at every start (`Drafts`), or in every round by what it knows of those before, and a decode
is the path of starts from the first to the end (`DecodePath`). Counts equal those of `predictors.replay.chains`, seconds those of
`predictors.latency.prices`. Shape suffixes: X texts, S starts (index s - 1, as a text's columns), G positions of a chain, M
states of a policy's memory, L tokens of a lookup.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from predictors.latency.prices import PriceTable, RoundPrices
from predictors.lookup import LookupSettings
from predictors.replay.acceptance import BeyondRecordError
from predictors.replay.text import RecordedText

Columns = tuple[np.ndarray, ...]  # of rounds, each [V]
# of texts, starts and what is known there: submitted tokens, those of them that were looked up, and anything else
Draft = Callable[..., Columns]
# of such places, what was drafted and the tokens accepted: what is known in the next round
After = Callable[[Columns, Columns, np.ndarray], Columns]
# What a policy knows of the round before: a state, from tokens accepted and submitted in it; 0 in the first round
Memory = Callable[[np.ndarray, np.ndarray], np.ndarray]


def first_of(holds_XSG: np.ndarray) -> np.ndarray:
    """The first position [X, S] at which something holds, or G."""
    return np.asarray(np.where(holds_XSG.any(axis=-1), holds_XSG.argmax(axis=-1), holds_XSG.shape[-1]))


@dataclass(frozen=True)
class Starts:
    """``texts`` at one sampling setting, chains of at most ``depth`` tokens that ``verifier`` verifies, and their ``prices``;
    where the drafter has a ``lookup``, also with tokens of that before them, ``depth`` tokens in all.

    At every start: ``would_XS`` tokens would be accepted, at most ``cap_XS`` can be drafted (depth, budget, end of sequence), and
    ``left_XS`` tokens are missing; after a text's end nothing is, and ``valid_XS`` is false.
    """

    texts: Sequence[RecordedText]
    depth: int
    verifier: str
    prices: RoundPrices
    would_XS: np.ndarray
    cap_XS: np.ndarray
    left_XS: np.ndarray
    lookup: LookupSettings | None = None

    @staticmethod
    def of(texts: Sequence[RecordedText], depth: int, verifier: str, prices: RoundPrices) -> "Starts":
        """Make starts without a lookup. `ValueError` if there are no texts, or no chains of ``depth`` tokens and ``verifier``
        in them."""
        slots = min((one.slots for one in texts), default=0)
        if not 1 <= depth <= slots:
            raise BeyondRecordError(
                f"chains of {depth} tokens cannot be replayed on {len(texts)} texts recorded with gamma_max={slots}. Raise "
                "traces.texts.gamma_max and collect again."
            )
        for one in texts:
            one.require_verifier(verifier)
        left_XS = Starts.by_start([np.arange(one.length - 1, 0, -1) for one in texts])
        would_XS = Starts.by_start([one.accepted()[1:] for one in texts])
        budget_X1 = np.array([[one.budget] for one in texts])
        cap_XS = np.where(left_XS > 0, np.minimum(depth, budget_X1 - 2 - np.arange(left_XS.shape[1])), 0)
        starts = Starts(texts, depth, verifier, prices, would_XS, cap_XS, left_XS)
        return replace(starts, cap_XS=np.minimum(cap_XS, first_of(starts.ends_XSG) + 1))

    @property
    def valid_XS(self) -> np.ndarray:
        """Mark where a round can start."""
        return self.left_XS > 0

    @cached_property
    def document_X(self) -> np.ndarray:
        """Each text's document."""
        return np.array([one.document for one in self.texts])

    @cached_property
    def context_X(self) -> np.ndarray:
        """Cached tokens before the first round."""
        return np.array([one.prompt_tokens for one in self.texts])

    @staticmethod
    def by_start(values: Sequence[Any]) -> np.ndarray:
        """Gather from each text's ``values`` [N, …] by row those at every start [X, S, …]; 0 where no round can start."""
        first = np.asarray(values[0])
        made = np.zeros((len(values), max(map(len, values)), *first.shape[1:]), first.dtype)
        for place, of_text in enumerate(values):
            made[place, : len(of_text)] = of_text
        return made

    def column(self, name: str) -> np.ndarray:
        """A recorded column of slots, such as ``confidence``, along the chain from every start [X, S, G, …]. Beyond ``cap_XS``
        it means nothing."""
        return self.by_start([one.columns[name] for one in self.texts])[:, :, : self.depth]

    def accepting(self, would_XS: np.ndarray) -> "Starts":
        """Make the same starts, at the same prices, for drafts of which so many tokens would be accepted."""
        made = copy.copy(self)
        vars(made).update(_table=self._table, _prefill_X=self._prefill_X, would_XS=would_XS)
        vars(made).pop("would_LXS", None)
        return made

    def summed(self, path: "DecodePath", values_V: np.ndarray | list[float]) -> np.ndarray:
        """Sums [X] of values of every round."""
        return np.bincount(path.text_V, values_V, len(self.texts))

    def totals(
        self, path: "DecodePath", drafts: "Drafts", passes_V: np.ndarray, accepted_V: np.ndarray, seconds_X: np.ndarray
    ) -> "Totals":
        """Add up the rounds of ``path``."""
        counts = (np.ones_like(path.start_V), drafts.submitted, passes_V, accepted_V, drafts.asked)
        rounds_X, submitted_X, passes_X, accepted_X, asked_X = (self.summed(path, one).astype(int) for one in counts)
        tokens_X = self.left_XS[:, 0] + 1
        return Totals(tokens_X, seconds_X, rounds_X, submitted_X, passes_X, accepted_X, asked_X, path)

    def read_seconds(self, path: "DecodePath", drafts: "Drafts") -> np.ndarray:
        """Price the host's readings of distributions [X]."""
        cost = self.prices.reading(1, 0) if drafts.confidences.any() else 0.0
        return self.summed(path, cost * drafts.confidences)

    def decoded(self, path: "DecodePath", drafts: "Drafts", question: float = 0.0) -> "Totals":
        """Return what the rounds of ``path`` [V] come to, each query of a model ``question`` seconds."""
        context_V = self.context_X[path.text_V] + path.start_V
        chain_V = drafts.submitted - drafts.beyond
        spent_V = self._table.rounds(context_V, chain_V, drafts.passes)
        if (drafts.nodes > chain_V).any():
            spent_V += self._table.leaves(context_V, chain_V, drafts.nodes)
        if self.lookup is not None:
            spent_V += self._table.looked_up(drafts.submitted, drafts.looked_up)
        if self.lookup is not None or self.texts[0].reads_states:
            behind_V = path.behind(drafts.passes, drafts.looked_up, self.texts[0].reads_states)
            spent_V += self._table.catching_up(context_V, drafts.passes, behind_V)
        spent_V += question * drafts.asked
        seconds_X = self._prefill_X + self.summed(path, spent_V) + self.read_seconds(path, drafts)
        return self.totals(path, drafts, drafts.passes, path.accepted_V, seconds_X)

    @cached_property
    def _prefill_X(self) -> np.ndarray:
        return np.array([self.prices.prefill(one.prompt_tokens, drafts=True) for one in self.texts])

    @cached_property
    def _table(self) -> PriceTable:
        context_XS = self.context_X[:, None] + np.arange(self.left_XS.shape[1])
        return PriceTable(self.prices, context_XS[self.valid_XS], self.depth)

    @cached_property
    def would_LXS(self) -> np.ndarray:
        """`would_XS` after every number of tokens of the lookup, which are among them."""
        counts = () if self.lookup is None else range(1, 1 + min(self.lookup.length, self.depth))
        made = ([np.array(one.accepted(count)[1:]) for one in self.texts] for count in counts)
        return np.stack([self.would_XS, *map(self.by_start, made)])

    @cached_property
    def ends_XSG(self) -> np.ndarray:
        """Mark whether the token drafted at a position is an end of sequence, which ends a draft."""
        return self.ends_after(0)

    def ends_after(self, looked_up: int) -> np.ndarray:
        """Mark ends [X, S, G] among tokens drawn after ``looked_up`` ones, which are the text's."""
        tokens_XSG, eos = self.column("tokens"), [list(one.eos_tokens) for one in self.texts]
        ends_XSG = np.stack([np.isin(tokens_SG, known) for tokens_SG, known in zip(tokens_XSG, eos, strict=True)])
        ends_XSG &= self.valid_XS[..., None]
        return np.pad(ends_XSG, ((0, 0), (0, looked_up), (0, 0)))[:, looked_up:]


@dataclass(frozen=True)
class Drafts:
    """A policy's drafts at every start by the state of its memory [X, S, M], or in rounds [V]: ``submitted`` tokens in draft
    ``passes``, queries ``asked`` of a model, and distributions whose ``confidences`` the host reads without one. The first
    ``looked_up`` tokens come from a lookup, which no memory of the policy notices; with leaves they are ``nodes`` in all, and of
    the levels ``beyond`` are those of a lookup beside the chain alone."""

    submitted: np.ndarray
    passes: np.ndarray
    asked: np.ndarray
    confidences: np.ndarray
    looked_up: np.ndarray
    nodes: np.ndarray
    beyond: np.ndarray

    @staticmethod
    def of(submitted: np.ndarray, passes: np.ndarray | None = None, **others: np.ndarray) -> "Drafts":
        """Make drafts without what is left out; ``passes``: as many as tokens."""
        none = dict.fromkeys(("asked", "confidences", "looked_up", "beyond"), np.zeros_like(submitted))
        return Drafts(submitted, submitted if passes is None else passes, **none | {"nodes": submitted} | others)

    def at(self, places: Columns) -> "Drafts":
        """Take the drafts in rounds [V] at texts, starts and states."""
        cells = self._cells(*places)
        return Drafts(*(values[cells] for values in vars(self).values()))

    def tokens(self, *places: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """There, tokens that are submitted and those of them that were looked up."""
        cells = self._cells(*places)
        return self.submitted[cells], self.looked_up[cells]

    def _cells(self, *places: np.ndarray | int) -> tuple[np.ndarray | int, ...]:
        """A policy that does not listen to its memory has one state."""
        return *places[:-1], places[-1] * (self.submitted.shape[-1] > 1)


def no_memory(accepted: np.ndarray, submitted: np.ndarray) -> np.ndarray:
    """A `Memory` of nothing."""
    return np.zeros_like(accepted)


@dataclass(frozen=True)
class Totals:
    """Every text decoded (`predictors.replay.decode.Decode`), on which ``path``, if that is known."""

    tokens_X: np.ndarray
    seconds_X: np.ndarray
    rounds_X: np.ndarray
    submitted_X: np.ndarray
    passes_X: np.ndarray
    accepted_X: np.ndarray
    asked_X: np.ndarray
    path: "DecodePath | None" = None

    @property
    def sums_2X(self) -> np.ndarray:
        """Tokens and seconds."""
        return np.stack([self.tokens_X, self.seconds_X])

    @property
    def rate(self) -> float:
        """Tokens per second of all texts together."""
        return float(self.tokens_X.sum() / self.seconds_X.sum())


@dataclass(frozen=True)
class DecodePath:
    """The rounds of all decodes [V]: ``places`` are their texts, starts and what is known there; what was ``drafted``, and how
    much of it accepted."""

    places: Columns
    drafted: Columns
    accepted_V: np.ndarray

    @property
    def text_V(self) -> np.ndarray:
        return self.places[0]

    @property
    def start_V(self) -> np.ndarray:
        return self.places[1]

    @staticmethod
    def of(starts: Starts, draft: Draft, after: After, *first: float) -> "DecodePath":
        """Follow the rounds from the first start, where ``first`` is known, to every text's end."""
        text_V, rounds = np.flatnonzero(starts.left_XS[:, 0]), []
        known = (np.full(len(text_V), value) for value in first)
        places: Columns = (text_V, np.zeros_like(text_V), *known)
        while len(places[0]):
            drafted, cells = draft(*places), places[:2]
            accepted_V = np.minimum(starts.would_LXS[(drafted[1], *cells)], drafted[0])
            rounds.append((places, drafted, (accepted_V,)))
            goes_on_V = starts.left_XS[cells] > accepted_V + 1
            following = cells[0], cells[1] + accepted_V + 1, *after(places, drafted, accepted_V)
            places = tuple(values[goes_on_V] for values in following)
        places, drafted, (accepted_V,) = (
            tuple(map(np.concatenate, zip(*parts, strict=True))) for parts in zip(*rounds, strict=True)
        )
        return DecodePath(places, drafted, accepted_V)

    def behind(self, passes_V: np.ndarray, looked_up_V: np.ndarray, reads_states: bool) -> np.ndarray:
        """Tokens that the first draft pass of every round feeds more than one (`predictors.rounds.ReplayedRound`)."""
        order_V = np.lexsort((self.start_V, self.text_V))
        text_V, start_V, drawn_V = self.text_V[order_V], self.start_V[order_V], passes_V[order_V] > 0
        first_V = np.diff(text_V, prepend=-1) > 0
        known_V = np.where(first_V | np.append(False, drawn_V[:-1]), np.arange(len(start_V)), 0)
        cached_V = start_V.copy()  # after a round that drew: by the draft model
        if reads_states:
            cached_V[1:] = np.where(first_V[1:], start_V[1:], start_V[:-1] + 1)
        waiting_V = start_V - cached_V[np.maximum.accumulate(known_V)]
        behind_V = np.empty_like(start_V)
        behind_V[order_V] = np.where(drawn_V, waiting_V + looked_up_V[order_V], 0)
        return behind_V


def decoded(starts: Starts, drafts: Drafts, question: float = 0.0, memory: Memory = no_memory) -> Totals:
    """Exact totals of every text under a policy whose ``question`` takes so many seconds."""

    def after(places: Columns, drafted: Columns, accepted_V: np.ndarray) -> Columns:
        return (np.where(drafted[1] > 0, places[2], memory(accepted_V, drafted[0])),)

    path = DecodePath.of(starts, drafts.tokens, after, 0)
    return starts.decoded(path, drafts.at(path.places), question)
