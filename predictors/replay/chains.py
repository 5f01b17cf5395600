"""The sequential loop on a recorded text: a controller's session decides, the text says what was accepted.

The same hooks in the same order as `runtime.decoding.sequential` and `runtime.drafting.chain`, with `predictors.signals` that
were recorded. Given the text, accepted counts and what was drafted beside it have exactly the law of decoding with a tokenwise
verifier (tests/trace_collection/test_texts.py enumerates both). For block verification the counts are exact too, and the
tokens behind a rejection are drawn as a tokenwise verifier would have rejected them, which only a controller's decisions there
can tell.

With a lookup, a controller may draft ``Sourced(n, m)``: n tokens of what was found, then m drawn ones. They are a chain whose
first n rows are one-hot, so that `predictors.replay.acceptance` holds with ratios

    1 / p(y)  at a token of the lookup that is the text's,  0 at one that is not,  the recorded ones after it

Not recorded is what would be drawn after a *wrong* lookup: there no end-of-sequence token ends the draft.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from predictors.controllers.base import Controller, Session, Sourced
from predictors.replay.text import BeyondRecordError, LookupSettings, RecordedLaw, RecordedText, RecordedToken
from predictors.rounds import Forecast, RoundRecord
from predictors.signals import Root

# Drafted tokens that the verifier would accept, of any number: by the row where a round starts, and by that row and how many of
# the first ones a lookup found.
Accepted = Callable[[int], int]
AcceptedAfter = Callable[[int, int], int]


@dataclass(frozen=True)
class ChainPolicy:
    """``controller`` decides about chains of at most ``depth`` tokens that are verified by the rule ``verifier``, and about what
    ``lookup`` finds, if the drafter has one. ``drafts``: there is a draft model; without one a plan is about the lookup."""

    controller: Controller
    depth: int
    verifier: str = "block"
    lookup: LookupSettings | None = None
    drafts: bool = True


@dataclass(frozen=True)
class ReplayedRound:
    """One round behind ``context`` cached tokens: ``submitted`` tokens, draft ``passes``, questions ``asked`` of a model, and
    ``emitted`` tokens of which ``accepted`` were drafted; ``forecasts`` are what a model said of them. Of laws about
    which no model was asked, the host read the confidence of ``confidences`` and also the entropy of ``entropies``. The first
    ``looked_up`` tokens came from a lookup. The first draft pass feeds ``behind`` tokens more than usual: those of rounds that
    drew nothing, and this round's lookup."""

    context: int
    submitted: int
    passes: int
    asked: int
    accepted: int
    emitted: int
    confidences: int = 0
    entropies: int = 0
    forecasts: tuple[Forecast, ...] = ()
    looked_up: int = 0
    behind: int = 0


@dataclass
class Drafted:
    """What was drafted in a round, counted as in `ReplayedRound`. ``would``: of any number so drafted, so many would be accepted;
    ``ended``: the last one is an end of sequence."""

    would: int
    submitted: int = 0
    passes: int = 0
    looked_up: int = 0
    confidences: int = 0
    entropies: int = 0
    ended: bool = False

    def read(self, law: RecordedLaw) -> None:
        """Count what the host read of ``law`` without asking a model."""
        self.entropies += law.entropy_read
        self.confidences += law.confidence_read and not law.entropy_read


def replayed(text: RecordedText, policy: ChainPolicy, accepted: AcceptedAfter) -> Iterator[ReplayedRound]:
    """The rounds behind the prefill under ``policy``.

    Raises
    ------
    ValueError
        If the policy's depth or the layers that its controller reads were not recorded.
    """
    controller, depth, lookup = policy.controller, policy.depth, policy.lookup
    if depth > text.slots:
        raise BeyondRecordError(
            f"chains of {depth} tokens cannot be replayed on texts recorded with gamma_max={text.slots}. Raise "
            "traces.texts.gamma_max and collect again."
        )
    text = text.tapped(controller.kind, controller.layers, controller.draft_layers)
    session, start, previous, waiting = controller.start(text.settings), 1, None, 0
    while start < text.length:
        root = text.root(start, depth, previous, lookup)
        sourced = session.source(root) if root.found is not None and root.found.length else None
        if sourced is None:
            most = planned(text, session, root, start)
            sourced = None if policy.drafts else Sourced(most)
        if sourced is None:
            drafted = draw_chain(text, session, root, start, accepted(start, 0), most)
        else:
            drafted = _sourced(text, accepted, sourced, root, start)
        submitted = drafted.submitted
        kept = min(drafted.would, submitted)
        emitted = min(kept + 1, text.length - start)
        previous = RoundRecord(drafted=submitted, accepted=kept, emitted=emitted, rolled_back=submitted - kept)
        previous.bypassed, previous.looked_up = session.bypassed, drafted.looked_up
        session.end_round(previous)
        yield ReplayedRound(
            context=text.prompt_tokens + start - 1,
            submitted=submitted,
            passes=drafted.passes,
            asked=session.asked,
            accepted=kept,
            emitted=emitted,
            confidences=drafted.confidences,
            entropies=drafted.entropies,
            forecasts=tuple(session.forecasts),
            looked_up=drafted.looked_up,
            behind=waiting + drafted.looked_up if lookup is not None and drafted.passes else 0,
        )
        waiting = 0 if drafted.passes else waiting + emitted
        start += emitted


def planned(text: RecordedText, session: Session, root: Root, start: int) -> int:
    """Most tokens to draft from row ``start``: what the session plans at ``root``, within its cap and the budget."""
    wanted = session.plan(root)
    return min(root.cap, text.cap(start), root.cap if wanted is None else wanted)


def _sourced(text: RecordedText, accepted: AcceptedAfter, sourced: Sourced, root: Root, start: int) -> Drafted:
    """What a round drafts of what was found at its ``root``, and after it."""
    assert root.found is not None
    room = min(root.cap, text.cap(start))
    found = root.found.tokens[: min(sourced.looked_up, room)]
    ends = [place for place, token in enumerate(found) if token in text.eos_tokens]
    looked_up = ends[0] + 1 if ends else len(found)
    drawn = 0 if ends else min(sourced.drawn, room - looked_up)
    drafted = Drafted(accepted(start, looked_up), looked_up=looked_up)
    drafted.passes = _drawn_after(text, root, start, looked_up, drafted.would, drawn)
    drafted.submitted = looked_up + drafted.passes
    return drafted


def _drawn_after(text: RecordedText, root: Root, start: int, looked_up: int, would: int, most: int) -> int:
    """Tokens drawn after a lookup: ``most``, or up to an end of sequence."""
    if would < looked_up:
        return most
    for place in range(looked_up, looked_up + most):
        token = RecordedToken(law_at(text, root, start, would, place), on_path=place < would)
        if token.id in text.eos_tokens:
            return place - looked_up + 1
    return most


def draw_chain(text: RecordedText, session: Session, root: Root, start: int, would: int, most: int) -> Drafted:
    """A chain of at most ``most`` tokens from row ``start``, up to where the session stops or the text ends."""
    drafted, stops = Drafted(would), False
    if not session.stops and not text.ends:
        drafted.submitted = drafted.passes = max(most, 0)
        return drafted
    while drafted.submitted < most and not stops:
        place, asked = drafted.passes, session.asked
        law = law_at(text, root, start, would, place)
        drafted.passes += 1
        stops = bool(session.stop_before(law))
        if not stops:
            drafted.submitted += 1
            token = RecordedToken(law, on_path=place < would)
            drafted.ended = token.id in text.eos_tokens
            stops = bool(session.stop_after(token)) or drafted.ended
        if session.asked == asked:
            drafted.read(law)
    return drafted


def law_at(text: RecordedText, root: Root, start: int, would: int, place: int) -> RecordedLaw:
    """The draft's law behind ``place`` tokens of the chain from ``start``; of a longer way beside the text than was recorded, the
    last one."""
    along = min(place, would)
    return RecordedLaw(text, root, place, start + along, min(place - along, text.slots - 1))
