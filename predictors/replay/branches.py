"""The branch-parallel loop on a recorded text (`runtime.decoding.branch_parallel`, posterior retention).

A block is drafted from the round's own row, with the target idle or on the branch that survived the round before: either way its
tokens are those of a chain from there, and how many are accepted follows from the text as for chains. Behind a block accepted
whole, one of k candidates is the text's next token with probability

    T > 0, rrs              h(k) of `trace_collection.candidate_hits`
    T = 0, or match         1 if that token is among the draft's k likeliest, else 0

and then the branch behind it is the next round's chain. Exact given the text, as chains are. Left out: that a branch ends early
at an end-of-sequence token, which only its price could tell, and what is read of laws while the target is
at work, behind the block and on growing branches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from predictors.branch_settings import BranchSettings
from predictors.controllers.base import Controller
from predictors.latency.branching import BranchRound
from predictors.replay.chains import Accepted, Drafted, Round
from predictors.replay.text import BeyondRecordError, RecordedText
from predictors.rounds import Forecast, RoundRecord

MATCH, RRS = "match", "rrs"


@dataclass(frozen=True)
class Chances:
    """What chance decides on a text, by row: how many tokens of a chain from there ``would`` be accepted, and whether what has
    some probability there is a ``hit``."""

    would: Accepted
    hit: Callable[[int, float], bool]


@dataclass(frozen=True)
class Replayed:
    """A round as `predictors.latency.branching` prices it, what it brought, what a model said of its block, and that ``block``,
    of whose laws the host read some while the target waited: drafting and retaining."""

    made: BranchRound
    asked: int
    accepted: int
    emitted: int
    hit: bool
    forecasts: tuple[Forecast, ...]
    block: Drafted


def replayed_branches(
    text: RecordedText, controller: Controller, config: BranchSettings, chances: Chances
) -> Iterator[Replayed]:
    """The rounds behind the prefill. `ValueError` if ``config`` or the controller's layers go beyond what was recorded."""
    require_replayable(text, config)
    text = text.tapped(controller.kind, controller.layers, controller.draft_layers)
    session, start, previous = controller.start(text.settings), 1, None
    grown = 0  # tokens behind the branch token that survived
    while start < text.length:
        if previous is not None:
            session.end_round(previous)
        here, would = Round(text, session, text.root(start, config.gamma, previous), start), chances.would(start)
        survived = previous is not None and not previous.ends_segment
        block, idle, law_known = _block(here, would, config, grown if survived else None)
        said, size = tuple(session.forecasts), block.submitted
        count, grown = _branching(here, block, config)
        reached, point = would >= size, start + size
        hit = reached and count > 0 and point < text.length and _hits(text, point, count, config, chances)
        accepted = min(would, size)
        emitted = min(accepted + 1, text.length - start)
        levels = 1 + grown if count else 0  # of branches
        made = BranchRound(
            context=text.prompt_tokens + start - 1,
            submitted=size,
            idle_levels=idle,
            levels=idle + levels,
            drafted=idle + count * levels,
            candidates=count,
            continues=survived,
            law_known=law_known and count > 0,
            reached=reached,
        )
        previous = RoundRecord(
            drafted=size, accepted=accepted + hit, emitted=emitted, ends_segment=not hit, bypassed=session.bypassed
        )
        yield Replayed(made, session.asked, accepted, emitted, hit, said, block)
        start += emitted


def _block(here: Round, would: int, config: BranchSettings, available: int | None) -> tuple[Drafted, int, bool]:
    """What the controller drafts with the target idle, or, of ``available`` tokens behind the branch token, retains; how many of
    them were drafted with the target idle, and whether the law behind them is known."""
    most = here.planned()
    if available is not None:
        made = here.chain(would, min(most, available))
        return made, 0, made.submitted < available  # the target waits for what is retained, too
    if config.draft_stage != "idle":
        return Drafted(would), 0, False
    made = here.chain(would, min(most, config.draft_stage_gamma or config.gamma))
    return made, made.submitted, made.passes > made.submitted


def _branching(here: Round, block: Drafted, config: BranchSettings) -> tuple[int, int]:
    """Candidates behind the block, and tokens behind each of them; no candidates where there are no branches."""
    length = min(config.gamma, here.text.cap(here.start) - block.submitted - 1)
    if length < 1 or block.ended:
        return 0, 0
    law = here.law(block.would, block.submitted)
    wanted = here.session.branch_count(law)
    return (config.num_branches(float(law.confidence)) if wanted is None else wanted), length


def _hits(text: RecordedText, row: int, count: int, config: BranchSettings, chances: Chances) -> bool:
    """Whether the text's token at ``row`` is one of ``count`` candidates, and accepted."""
    if text.settings.greedy or config.branch_verifier == MATCH:
        return text.number("rank", row) < count
    hits_C = text.columns["hits"][row - 1]
    if count > len(hits_C):
        raise BeyondRecordError(
            f"{count} candidates cannot be replayed where {len(hits_C)} were recorded. Raise traces.texts.candidates."
        )
    return chances.hit(row, float(hits_C[count - 1]))


def require_replayable(text: RecordedText, config: BranchSettings) -> None:
    """`ValueError` unless a text holds what decoding by ``config`` would see."""
    if config.retention != "posterior":
        raise BeyondRecordError(
            f"retention {config.retention!r} cannot be replayed: how far the branches grow that die is not recorded."
        )
    if not text.settings.greedy and config.branch_verifier not in (MATCH, RRS):
        raise BeyondRecordError(
            f"branch_verifier {config.branch_verifier!r} cannot be replayed. Known: {MATCH}, {RRS}."
        )
    if config.gamma > text.slots:
        raise BeyondRecordError(
            f"branches of {config.gamma} tokens cannot be replayed on texts recorded with gamma_max={text.slots}. Raise "
            "traces.texts.gamma_max and collect again."
        )
