"""The branch-parallel loop on a recorded text (`runtime.decoding.branch_parallel`, posterior retention).

A block is drafted from the round's own row, with the target idle or on the branch that survived the round before: either way
its tokens are those of a chain from there, and how many are accepted follows from the text as for chains. After a block accepted
whole, one of k candidates is the text's next token with probability

    T > 0, rrs              h(k) of `trace_collection.text_tracer`
    T = 0, or match         1 if that token is among the draft's k likeliest, else 0

and then the branch after it is the next round's chain. Exact given the text, as chains are, but for a draft that reads the
target's states: on a branch it goes on from its own, and the next chain is taken from the root after the candidate all the same.
Left out: that a branch ends early at an end-of-sequence token, which only its price could tell, and what is read of
distributions while the target is at work, after the block and on growing branches.
"""

from collections.abc import Iterator

from predictors.branch_settings import BranchSettings
from predictors.controllers.base import Controller
from predictors.replay.acceptance import BeyondRecordError
from predictors.replay.chains import Round
from predictors.replay.text import RecordedText
from predictors.rounds import ReplayedRound

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
        here = Round(text, session, text.root(start, config.gamma, previous), start)
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


def _block(here: Round, config: BranchSettings, available: int | None) -> tuple[int, bool]:
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


def _branching(here: Round, config: BranchSettings) -> tuple[int, int]:
    """Return the candidates after the block, and the tokens after each of them; no candidates where there are no branches."""
    length = min(config.gamma, here.text.cap(here.start) - here.submitted - 1)
    if length < 1 or here.ended:
        return 0, 0
    law = here.law(here.submitted)
    wanted = here.session.branch_count(law)
    return (config.num_branches(float(law.confidence)) if wanted is None else wanted), length


def _hit(text: RecordedText, start: int, submitted: int, count: int, config: BranchSettings) -> bool:
    """Tell whether the text's token after a block of ``submitted`` tokens is one of ``count`` candidates, and accepted."""
    if text.settings.greedy or config.branch_verifier == MATCH:
        return text.number("rank", start, submitted) < count
    hits_C = text.columns["hits"][start - 1, submitted]
    if count > len(hits_C):
        raise BeyondRecordError(
            f"{count} candidates cannot be replayed where {len(hits_C)} were recorded. Raise traces.texts.candidates."
        )
    return bool(text.number("tried", start + submitted) < hits_C[count - 1])


def require_replayable(text: RecordedText, config: BranchSettings) -> None:
    """Raise `ValueError` unless a text holds what decoding by ``config`` would see."""
    if config.retention != "posterior":
        raise BeyondRecordError(
            f"retention {config.retention!r} cannot be replayed: how far the branches grow that die is not recorded."
        )
    if not text.settings.greedy and config.branch_verifier not in (MATCH, RRS):
        raise BeyondRecordError(
            f"branch_verifier {config.branch_verifier!r} cannot be replayed. Known: {MATCH}, {RRS}."
        )
    if config.gamma >= text.slots:  # candidates are drawn after as many tokens
        raise BeyondRecordError(
            f"branches of {config.gamma} tokens cannot be replayed on texts recorded with gamma_max={text.slots}. Raise "
            f"traces.texts.gamma_max to {config.gamma + 1} and collect again."
        )
