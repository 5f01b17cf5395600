"""The branch-parallel loop on recorded texts (`runtime.decoding.branch_parallel`, posterior retention): by a controller's
sessions, or, in arrays as `predictors.replay.grid` is for chains, by policies.

A block is drafted from the round's own row, with the target idle or on the branch that survived the round before: either way
its tokens are those of a chain from there, and how many are accepted follows from the text as for chains. After a block accepted
whole, one of k candidates is the text's next token with probability

    T > 0, rrs              h(k) of `trace_collection.drafts`
    T = 0, or match         1 if that token is among the draft's k likeliest, else 0

and then the branch after it is the next round's chain. Exact given the text, as chains are, but for a draft that reads the
target's states: on a branch it goes on from its own, and the next chain is taken from the root after the candidate all the same.
Left out: that a branch ends early at an end-of-sequence token, which only its price could tell, and what is read of
distributions while the target is at work, after the block and on growing branches.

In arrays a round knows its start, whether a branch survived the round before, and the policy's memory; its block is a chain from
the start (`predictors.replay.policies`). After a block of P tokens a branch has min(γ, budget - start - P - 2) tokens. Shape
suffixes: X texts, S starts, P tokens of a block (0..γ), V rounds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from predictors.controllers.base import Controller
from predictors.replay.acceptance import BeyondRecordError
from predictors.replay.chains import ChainRound
from predictors.replay.grid import Columns, DecodePath, Drafts, Memory, Starts, Totals, no_memory
from predictors.replay.text import RecordedText, onward
from predictors.rounds import BranchSettings, ReplayedRound

MATCH, RRS = "match", "rrs"


def replayed_branches(
    text: RecordedText, controller: Controller, config: BranchSettings, verifier: str
) -> Iterator[ReplayedRound]:
    """Replay the rounds after the prefill, with a draft pass for every level. `ValueError` if ``config``, ``verifier`` or the
    controller's layers go beyond what was recorded."""
    text.require_verifier(verifier)
    require_replayable(text, config)
    text = text.tapped(controller.kind, controller.layers, controller.draft_layers)
    session, start, previous = controller.start(text.settings), 1, None
    grown = 0  # tokens after the branch token that survived
    while start < text.length:
        here = ChainRound(text, session, text.root(start, config.gamma, previous), start)
        survived = previous is not None and not previous.ends_segment
        idle, law_known = _block(here, config, grown if survived else None)
        count, grown = _branching(here, config)
        row = start + here.submitted
        reached = here.would >= here.submitted and count > 0 and row < text.length
        hit = reached and _hit(text, start, here.submitted, count, config)
        levels = 1 + grown if count else 0  # of branches
        previous = here.record(
            drafted=idle + count * levels,
            levels=idle + levels,
            idle_levels=idle,
            candidates=count,
            law_known=law_known and count > 0,
            rolled_back=0 if hit else max(here.submitted - here.would, 0) + levels,
            ends_segment=not hit,
            survived=survived,
        )
        previous.accepted, previous.passes = previous.accepted + hit, previous.levels
        session.end_round(previous)
        yield previous
        start += previous.emitted


def _block(here: ChainRound, config: BranchSettings, available: int | None) -> tuple[int, bool]:
    """Draft what the controller wants with the target idle, or, of ``available`` tokens after the branch token, retain. Return
    how many were drafted with the target idle, and whether the distribution after them is known."""
    most = here.planned()
    if available is not None:
        here.chain(min(most, available))
        return 0, here.submitted < available  # the target waits for what is retained, too
    if config.draft_stage != "idle":
        here.chain(0)
        return 0, False
    here.chain(min(most, config.draft_stage_gamma or config.gamma))
    return here.submitted, here.passes > here.submitted


def _branching(here: ChainRound, config: BranchSettings) -> tuple[int, int]:
    """Return the candidates after the block, and the tokens after each of them; no candidates where there are no branches."""
    length = min(config.gamma, here.text.cap(here.start) - here.submitted - 1)
    if length < 1 or here.ended:
        return 0, 0
    law = here.law(here.submitted)
    wanted = here.session.branch_count(law)
    return (config.num_branches(float(law.confidence)) if wanted is None else wanted), length


def _hit(text: RecordedText, start: int, submitted: int, count: int, config: BranchSettings) -> bool:
    """Tell whether the text's token after a block of ``submitted`` tokens is one of ``count`` candidates, and accepted."""
    if text.settings.read_off or config.branch_verifier == MATCH:
        return text.number("rank", start, submitted) < count
    hits_C = text.columns["hits"][start - 1, submitted]
    require_hits(count, len(hits_C))
    return bool(text.number("tried", start + submitted) < hits_C[count - 1])


def require_hits(count: int, recorded: int) -> None:
    """Raise `ValueError` if hits of so many candidates were not ``recorded``."""
    if count > recorded:
        raise BeyondRecordError(
            f"{count} candidates cannot be replayed where {recorded} were recorded. Raise traces.texts.candidates."
        )


def require_replayable(text: RecordedText, config: BranchSettings) -> None:
    """Raise `ValueError` unless a text holds what decoding by ``config`` would see."""
    if config.retention != "posterior":
        raise BeyondRecordError(
            f"retention {config.retention!r} cannot be replayed: how far the branches grow that die is not recorded."
        )
    if not text.settings.read_off and config.branch_verifier not in (MATCH, RRS):
        raise BeyondRecordError(
            f"branch_verifier {config.branch_verifier!r} cannot be replayed. Known: {MATCH}, {RRS}."
        )
    if config.gamma >= text.slots:  # candidates are drawn after as many tokens
        raise BeyondRecordError(
            f"branches of {config.gamma} tokens cannot be replayed on texts recorded with gamma_max={text.slots}. Raise "
            f"traces.texts.gamma_max to {config.gamma + 1} and collect again."
        )


@dataclass(frozen=True)
class BranchStarts:
    """Every round of branch-parallel decodes at one sampling setting: chains from starts where the target is ``idle``, and from
    those where a branch survived and is ``retained``."""

    config: BranchSettings
    idle: Starts
    retained: Starts

    @staticmethod
    def of(retained: Starts, config: BranchSettings) -> "BranchStarts":
        """Make starts of chains of the config's ``gamma``. `ValueError` if the config goes beyond what was recorded."""
        for one in retained.texts:
            require_replayable(one, config)
        most = (config.draft_stage_gamma or config.gamma) if config.draft_stage == "idle" else 0
        idle = replace(retained, cap_XS=np.minimum(retained.cap_XS, most))
        return BranchStarts(config, idle, retained)

    def _after(self, name: str) -> np.ndarray:
        """A recorded column of slots after so many tokens of a block [X, S, P, …]."""
        return replace(self.retained, depth=self.config.gamma + 1).column(name)

    @cached_property
    def grown_XSP(self) -> np.ndarray:
        """Tokens on a branch after the candidate; 0 where there are no branches."""
        budget_X = np.array([one.budget for one in self.retained.texts])
        start_SP = np.add.outer(np.arange(self.retained.would_XS.shape[1]), np.arange(self.config.gamma + 1)) + 3
        grown_XSP = np.clip(budget_X[:, None, None] - start_SP, 0, self.config.gamma)
        grown_XSP[..., 1:][self.retained.ends_XSG] = 0
        return np.asarray(grown_XSP)

    @cached_property
    def count_XSP(self) -> np.ndarray:
        """Candidates after a block."""
        number = np.frompyfunc(lambda confidence: self.config.num_branches(float(confidence)), 1, 1)
        return np.where(self.grown_XSP > 0, number(np.nan_to_num(self._after("confidence"))), 0).astype(int)

    @cached_property
    def hit_XSP(self) -> np.ndarray:
        """Tell whether a candidate is the text's token, and accepted, after a block that is accepted whole."""
        texts, count_XSP = self.retained.texts, self.count_XSP
        place_P = np.arange(self.config.gamma + 1)
        open_XSP = (count_XSP > 0) & (place_P <= self.retained.would_XS[..., None])
        open_XSP &= place_P < self.retained.left_XS[..., None]
        if texts[0].settings.read_off or self.config.branch_verifier == MATCH:
            return open_XSP & (self._after("rank") < count_XSP)
        hits_XSPC = self._after("hits")
        require_hits(count_XSP[open_XSP].max(initial=0), hits_XSPC.shape[-1])
        which_XSP1 = np.clip(count_XSP - 1, 0, hits_XSPC.shape[-1] - 1)[..., None]
        chance_XSP = np.take_along_axis(hits_XSPC, which_XSP1, axis=-1)[..., 0]
        tried_XSP = self.retained.by_start([onward(one.columns["tried"], len(place_P)) for one in texts])
        return np.asarray(open_XSP & (tried_XSP < chance_XSP))

    @cached_property
    def prefill_X(self) -> np.ndarray:
        """Seconds of both models' prefills."""
        return np.array(
            [self.retained.prices.branch_request((), prompt) for prompt in self.retained.context_X.tolist()]
        )

    @cached_property
    def round_seconds(self) -> Callable[[tuple[tuple[str, int], ...]], float]:
        """Seconds of one round, by what it is made of; the same rounds are met by many policies."""
        return cache(lambda made: self.retained.prices.branch_round(ReplayedRound(**dict(made))))


def branch_decoded(
    starts: BranchStarts, idle: Drafts, retained: Drafts, question: float = 0.0, memory: Memory = no_memory
) -> Totals:
    """Exact totals of every text by a policy that drafts as ``idle`` says, and keeps of a branch what ``retained`` says.

    On its path is known whether a branch survived, then the state of memory.
    """
    both = zip(vars(idle).values(), vars(retained).values(), strict=True)
    staged = Drafts(*(np.stack(np.broadcast_arrays(*values), axis=2) for values in both))

    def after(places: Columns, drafted: Columns, accepted_V: np.ndarray) -> Columns:
        hit_V = starts.hit_XSP[places[0], places[1], drafted[0]]
        return hit_V.astype(int), memory(accepted_V, drafted[0])

    chains = starts.retained
    path = DecodePath.of(chains, staged.tokens, after, 0, 0)
    drafts = staged.at(path.places)
    levels_V, seconds_V = _priced(starts, path, drafts)
    hit_V = starts.hit_XSP[path.text_V, path.start_V, drafts.submitted]
    seconds_X = starts.prefill_X + chains.summed(path, seconds_V)
    seconds_X += question * chains.summed(path, drafts.asked) + chains.read_seconds(path, drafts)
    return chains.totals(path, drafts, levels_V, path.accepted_V + hit_V, seconds_X)


def _priced(starts: BranchStarts, path: DecodePath, drafts: Drafts) -> tuple[np.ndarray, np.ndarray]:
    """Levels, and seconds, of every round [V]; rounds that are made alike are priced once."""
    chains, size_V, survived_V = starts.retained, drafts.submitted, path.places[2] > 0
    after = path.text_V, path.start_V, size_V
    count_V, grown_V = starts.count_XSP[after], starts.grown_XSP[after]
    idle_V, levels_V = np.where(survived_V, 0, size_V), np.where(count_V > 0, 1 + grown_V, 0)
    cut_V = size_V < chains.cap_XS[after[:2]]
    known_V = np.where(survived_V, cut_V, drafts.passes > size_V) & (count_V > 0)
    columns = {
        "context": chains.context_X[path.text_V] + path.start_V,
        "submitted": size_V,
        "idle_levels": idle_V,
        "levels": idle_V + levels_V,
        "drafted": idle_V + count_V * levels_V,
        "candidates": count_V,
        "survived": survived_V,
        "law_known": known_V,
        "accepted": np.where(chains.would_XS[after[:2]] >= size_V, size_V, 0),  # all of them, or too few
    }
    sizes = [int(column.max()) + 1 for column in columns.values()]
    numbers_V = np.ravel_multi_index([*columns.values()], sizes)
    _, first_U, which_V = np.unique(numbers_V, return_index=True, return_inverse=True)
    rows_U = zip(*(column[first_U].tolist() for column in columns.values()), strict=True)
    seconds_U = np.array([starts.round_seconds(tuple(zip(columns, row, strict=True))) for row in rows_U])
    return columns["levels"], seconds_U[which_V]
