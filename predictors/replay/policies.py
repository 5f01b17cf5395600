"""Policies' drafts at every start of recorded texts (`predictors.replay.grid`), as sessions of `predictors.controllers` draft.

    static        n tokens
    confidence    draft while max_x q(x) >= ε                                   (`controllers.unlearned`)
    stopping      a model of the draft's states, by a `StopRule`                (`controllers.early_stop`)
    heads         a model of the target's state, by a class or a length         (`controllers.head`)
    Grown         a model of candidates, by the price of levels and of leaves   (`controllers.grow`)

A rule that stops before a token has paid for the pass whose distribution it read. Where a model's features lie ``far`` from
its training rows, the round drafts ``static_length`` tokens instead.

Shape suffixes: X texts, S starts, G positions of a chain, M states of memory, L classes, K candidates, F features, N rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from predictors.controllers.source import Seen, lookup_survival
from predictors.grow import CANDIDATES, Growing, GrowRule, GrowSetting, features_of, logs_of, values_of
from predictors.head import DecisionRule, LengthRule
from predictors.replay.acceptance import BeyondRecordError
from predictors.replay.grid import Drafts, Memory, Starts, Totals, decoded, first_of
from predictors.stopping import StopRule


def static(starts: Starts, length: int) -> Drafts:
    """Draft always ``length`` tokens."""
    return Drafts.of(np.minimum(starts.cap_XS, length)[..., None])


def confidence(starts: Starts, largest_XSG: np.ndarray, epsilon: float) -> Drafts:
    """Draft while ``largest_XSG`` >= ``epsilon``, but at least one token."""
    low_XSG = largest_XSG < epsilon
    low_XSG[..., 0] = False
    submitted_XS = np.minimum(first_of(low_XSG), starts.cap_XS)
    passes_XS = np.minimum(submitted_XS + 1, starts.cap_XS)
    read_XS = np.maximum(passes_XS - 1, 0)
    return Drafts.of(submitted_XS[..., None], passes_XS[..., None], confidences=read_XS[..., None])


def stopping(
    starts: Starts, chances_XSG: np.ndarray, rule: StopRule, inputs: str, static_length: int, far_XSG: np.ndarray
) -> Drafts:
    """Draft until the score of ``rule`` is low; ``static_length`` tokens where it needs none.

    ``chances_XSG`` and ``far_XSG`` are the model's outputs for the draft's state or distribution at a position: of the token
    about to be drawn there, or, with inputs ``behind``, of the token before it.
    """
    if not rule.asks:
        return static(starts, static_length)
    drafted_G = np.arange(chances_XSG.shape[2])
    asked_G = rule.asks_at(drafted_G, inputs)
    scores_XSG = np.where(asked_G, chances_XSG.astype(np.float64), 1.0)
    stops_XSG = rule.stops(np.cumprod(scores_XSG, axis=2) if rule.product else scores_XSG, drafted_G)
    stop_XS, cap_XS, asked_L = first_of(stops_XSG), starts.cap_XS, np.append(0, asked_G.cumsum())
    submitted_XS, passes_XS = (np.minimum(stop_XS + more, cap_XS) for more in (int(rule.keeps), 1))
    far_XS = first_of(far_XSG & asked_G)
    aside_XS, end_XS = far_XS <= stop_XS, np.maximum(far_XS, static_length)
    asked_XS = np.where(aside_XS, asked_L[np.minimum(far_XS + 1, cap_XS)], asked_L[passes_XS])
    submitted_XS = np.where(aside_XS, np.minimum(end_XS, cap_XS), submitted_XS)
    passes_XS = np.where(aside_XS, np.minimum(end_XS + 1, cap_XS), passes_XS)
    return Drafts.of(submitted_XS[..., None], passes_XS[..., None], asked=asked_XS[..., None])


def heads(
    starts: Starts,
    probabilities_XSML: np.ndarray,
    rule: DecisionRule | LengthRule,
    gamma: int,
    at_root: bool,
    largest_XSG: np.ndarray,
    static_length: int,
    far_XSM: np.ndarray,
) -> Drafts:
    """Draft as ``rule`` decides by a head's calibrated probabilities of the fate of ``gamma`` tokens.

    ``at_root``: decided before drafting (feature set ``paper``), else at the first distribution, whose pass is paid. States of
    memory are those of `previous_round`; ``largest_XSG`` is the ``confidence`` along the chain.
    """
    least, cut, options = 0 if at_root else 1, replace(starts, cap_XS=np.minimum(starts.cap_XS, gamma)), []
    for decision in range(probabilities_XSML.shape[-1]):
        most, epsilon = rule.limits(decision, gamma)
        hard = _paid(cut, most, max(most, least))
        options.append(hard if epsilon is None else confidence(cut, largest_XSG, epsilon))
    if rule.settled is not None:
        return options[rule.settled]
    rows_BL = torch.from_numpy(probabilities_XSML.reshape(-1, probabilities_XSML.shape[-1]))
    which_XSM = rule.decisions(rows_BL).numpy().reshape(probabilities_XSML.shape[:3])
    further = max(static_length, 1) if isinstance(rule, LengthRule) else static_length + 1
    options.append(static(starts, static_length) if at_root else _paid(cut, static_length, further))
    picked = _picked(options, np.where(far_XSM, len(options) - 1, which_XSM))
    asked_XS1 = np.where(at_root, 1, np.minimum(cut.cap_XS, 1))[..., None]
    return replace(picked, asked=np.broadcast_to(asked_XS1, which_XSM.shape))


def _picked(options: Sequence[Drafts], which_XSM: np.ndarray) -> Drafts:
    """Pick at every start and state one of ``options`` [X, S, 1], none of which runs a model or reads an entropy."""
    place_XSM = which_XSM + len(options) * np.arange(which_XSM[..., 0].size).reshape(*which_XSM.shape[:2], 1)
    columns = ([getattr(one, name) for one in options] for name in ("submitted", "passes", "confidences"))
    submitted, passes, read = (np.concatenate(values, axis=2).take(place_XSM) for values in columns)
    return Drafts.of(submitted, passes, confidences=read)


def _paid(starts: Starts, length: int, passes: int) -> Drafts:
    """Draft ``length`` tokens for so many ``passes``."""
    return replace(static(starts, length), passes=np.minimum(starts.cap_XS, passes)[..., None])


def previous_round(gamma: int) -> Memory:
    """Reduce the round before to what features know of it (`predictors.head.scalar_features`), one of ``gamma`` + 2 states:
    0 nothing, 1 + a that a of ``gamma`` tokens were accepted."""

    def state(accepted: np.ndarray, submitted: np.ndarray) -> np.ndarray:
        seen = (accepted < submitted) | (submitted >= gamma)
        return np.where(seen, 1 + np.minimum(accepted, gamma), 0)

    return state


def remembered(gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a round of each state of `previous_round`: ``previous_drafted``, ``previous_accepted`` [M] of `assemble`."""
    accepted_M = np.arange(-1, gamma + 1)
    return np.where(accepted_M < 0, -1, gamma), accepted_M


@dataclass(frozen=True)
class Lookups:
    """Lookups at ``starts`` whose drafter has one."""

    starts: Starts

    @cached_property
    def tokens_XSL(self) -> np.ndarray:
        """Tokens that lookups found, -1 where nothing is."""
        assert self.starts.lookup is not None, "its drafter has a lookup"
        tokens_XSL = self._column("lookup")[..., : self.starts.lookup.length]
        return np.where(self.match_XS[..., None] > 0, tokens_XSL, -1)

    @cached_property
    def match_XS(self) -> np.ndarray:
        """Number of tokens of the match; 0 where it counts as none."""
        match_XS, lookup = self._column("match"), self.starts.lookup
        return match_XS * (match_XS >= (1 if lookup is None else lookup.least))

    @cached_property
    def found_XS(self) -> np.ndarray:
        return np.asarray((self.tokens_XSL >= 0).sum(axis=-1))

    @cached_property
    def right_XS(self) -> np.ndarray:
        """Number of tokens of every lookup that are the text's."""
        return np.minimum(self.starts.would_LXS[-1], self.found_XS)

    @cached_property
    def known(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of `Seen` [X, S]: tokens of the match, tokens found, earlier occurrences of the match's last tokens, and those
        of them that went on with the first token found."""
        return self.match_XS, self.found_XS, self._column("seen"), self._column("agreed")

    @cached_property
    def room_XS(self) -> np.ndarray:
        """Number of tokens that the budget and the depth leave to draft."""
        budget_X1 = np.array([[one.budget] for one in self.starts.texts])
        left_XS = np.maximum(budget_X1 - 2 - np.arange(self.starts.left_XS.shape[1]), 0)
        return np.asarray(np.minimum(left_XS, self.starts.depth) * self.starts.valid_XS)

    @cached_property
    def through_XS(self) -> np.ndarray:
        """Number of tokens up to an end of sequence that was found; more than there are where none was."""
        eos = [list(one.eos_tokens) for one in self.starts.texts]
        ends = [np.isin(tokens_SL, known) for tokens_SL, known in zip(self.tokens_XSL, eos, strict=True)]
        return first_of(np.stack(ends)) + 1

    @cached_property
    def most_XS(self) -> np.ndarray:
        """The most tokens of the lookup that can be drafted."""
        return np.minimum.reduce([self.found_XS, self.through_XS, self.room_XS])

    def _column(self, name: str) -> np.ndarray:
        return self.starts.by_start([one.columns[name] for one in self.starts.texts])


@dataclass(frozen=True)
class GrowGrid:
    """Grid of ``starts`` at one sampling setting at which tokens are read off, and of what their ``lookups`` find."""

    starts: Starts

    @cached_property
    def lookups(self) -> Lookups:
        return Lookups(self.starts)

    @cached_property
    def features_XSGF(self) -> np.ndarray:
        tops_XSGT = self.starts.column("tops").astype(np.float64)
        if tops_XSGT.shape[-1] < CANDIDATES:
            raise BeyondRecordError(
                f"grow reads the {CANDIDATES} most likely tokens, and {tops_XSGT.shape[-1]} were recorded. Raise "
                "traces.texts.top and collect again."
            )
        logs_XSGK = logs_of(tops_XSGT)
        return features_of(logs_XSGK, self.starts.texts[0].settings.invariant)

    @cached_property
    def rank_XSG(self) -> np.ndarray:
        """Rank of the text's token among the candidates of a level, up to the first that is not 0."""
        return self.starts.column("rank")

    @cached_property
    def tested_XSG(self) -> np.ndarray:
        """Mark levels of chains whose tokens so far are the text's, and that may be drafted."""
        level_G = np.arange(self.starts.depth)
        most_XS = np.minimum(self.starts.would_XS + 1, np.minimum(self.starts.cap_XS, self.starts.left_XS))
        return np.asarray(level_G < most_XS[..., None])

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Collect features [N, F] of tested levels, and which candidate is right [N], K: none."""
        return self.features_XSGF[self.tested_XSG], np.minimum(self.rank_XSG[self.tested_XSG], CANDIDATES)

    def totals(
        self,
        widths_XSG: np.ndarray,
        beside_XS: np.ndarray | None = None,
        question: float = 0.0,
        **drafted_XS: np.ndarray,
    ) -> Totals:
        """Decode by drafts that submit the first ``widths_XSG`` candidates of each level, and beside them ``beside_XS`` tokens of
        the lookup; ``drafted_XS``: passes and queries, each of ``question`` seconds."""
        kept_XSG = np.cumprod(widths_XSG > 0, axis=-1) > 0
        submitted_XS, nodes_XS = kept_XSG.sum(axis=-1), np.where(kept_XSG, widths_XSG, 0).sum(axis=-1)
        would_XS = self.starts.would_XS
        failing = np.minimum(would_XS, self.starts.depth - 1)[..., None]
        rank_XS, width_XS = (np.take_along_axis(one, failing, -1)[..., 0] for one in (self.rank_XSG, widths_XSG))
        hit_XS = (would_XS < submitted_XS) & (rank_XS > 0) & (rank_XS < width_XS)
        would_XS, columns = would_XS + hit_XS, {"nodes": nodes_XS, **drafted_XS}
        if beside_XS is not None:
            right_XS, would_XS = np.minimum(self.lookups.right_XS, beside_XS), np.minimum(would_XS, submitted_XS)
            shared_XS = np.minimum.reduce([self._alike_XS, submitted_XS, beside_XS])
            shared_XS += shared_XS < np.minimum(right_XS, would_XS)  # a leaf's
            alone_XS, beyond_XS = (drafted_XS["passes"] == 0) & (beside_XS > 0), np.maximum(beside_XS - submitted_XS, 0)
            columns["looked_up"], columns["beyond"] = np.where([alone_XS, ~alone_XS], [beside_XS, beyond_XS], 0)
            columns["nodes"], submitted_XS = nodes_XS + beside_XS - shared_XS, submitted_XS + beyond_XS
            would_XS = np.maximum(would_XS, right_XS)
        drafts = Drafts.of(submitted_XS[..., None], **{name: values[..., None] for name, values in columns.items()})
        return decoded(self.starts.accepting(would_XS), drafts, question)

    @cached_property
    def _alike_XS(self) -> np.ndarray:
        """Number of the lookup's first tokens that are the chain's."""
        lookup_XSL, chain_XSG = self.lookups.tokens_XSL, self.starts.column("tokens")
        alike = lookup_XSL[..., : chain_XSG.shape[-1]] == chain_XSG[..., : lookup_XSL.shape[-1]]
        return first_of(~alike)

    def static(self, length: int, leaves: Sequence[int]) -> Totals:
        """Decode by the same chain with leaves in every round."""
        return self.totals(self.static_widths(length, leaves))

    def static_widths(self, length: int, leaves: Sequence[int]) -> np.ndarray:
        level_G = np.arange(self.starts.depth)
        width_G = 1 + np.array((*leaves, *[0] * len(level_G))[: len(level_G)])
        return np.where(level_G < np.minimum(self.starts.cap_XS, length)[..., None], width_G, 0)


@dataclass(frozen=True)
class Grown:
    """Replay of a network's ``growing`` on a ``grid``, as ``made`` there; squared distances up to ``limit`` are trusted, and a
    query takes ``question`` seconds."""

    grid: GrowGrid
    growing: Growing
    limit: float
    made: GrowSetting
    question: float

    @cached_property
    def _said(self) -> tuple[np.ndarray, np.ndarray]:
        return self.growing(self.grid.features_XSGF)

    def asked(self, rule: GrowRule, question: float | None = None) -> Totals:
        """Decode by ``rule``, whether it pays or not; ``question``: seconds of a query, if not as measured."""
        return self._decoded(replace(self.made, rule=rule), self.question if question is None else question)

    def served(self) -> Totals:
        """Decode by what serves at the setting."""
        return self.asked(self.made.rule) if self.made.pays else self.static()

    def static(self) -> Totals:
        return self.grid.static(self.made.static_length, self.made.static_leaves)

    def _decoded(self, made: GrowSetting, question: float) -> Totals:
        """Decode as `predictors.controllers.grow` decides."""
        (chances_XSGK, distance_XSG), starts = self._said, self.grid.starts
        reached_XSG, most_XS, counts_XS = np.cumprod(chances_XSGK[..., 0], axis=-1), starts.cap_XS, 0
        if made.hazard:
            counts_XS, left_XS = made.looked_up(self._survives_XSL(made.hazard))
            reached_XSG = reached_XSG * left_XS[..., None]
            most_XS = np.where((counts_XS == 0) | made.goes_on(left_XS), most_XS, 0)
        levels_XS = np.minimum(first_of(~made.goes_on(reached_XSG)) + 1, most_XS)
        far_XS = first_of(distance_XSG > self.limit)
        aside_XS, level_G = far_XS < levels_XS, np.arange(starts.depth)
        values_XSGK = np.where((level_G < levels_XS[..., None])[..., None], values_of(chances_XSGK), -np.inf)
        asked_XS = np.where(aside_XS, far_XS + 1, levels_XS)
        levels_XS = np.where(aside_XS, np.minimum(np.maximum(far_XS + 1, made.static_length), most_XS), levels_XS)
        least_XSG = self.grid.static_widths(starts.depth, made.static_leaves)
        static_XSG = np.where(level_G < levels_XS[..., None], least_XSG, 0)
        widths_XSG = np.where(aside_XS[..., None], static_XSG, made.widths(values_XSGK, counts_XS))
        beside_XS = np.where(aside_XS, 0, np.minimum(counts_XS, self.grid.lookups.most_XS)) if made.hazard else None
        return self.grid.totals(widths_XSG, beside_XS, question, passes=levels_XS, asked=asked_XS)

    def _survives_XSL(self, hazard: tuple[float, ...]) -> np.ndarray:
        """Chances that the first tokens of a lookup are all right, 0 behind its last."""
        lookups = self.grid.lookups
        none_XS, tokens_XSL = np.zeros(lookups.found_XS.shape), lookups.tokens_XSL
        return np.where(
            tokens_XSL >= 0, lookup_survival(hazard, Seen(*lookups.known, none_XS, none_XS), tokens_XSL.shape[-1]), 0.0
        )
