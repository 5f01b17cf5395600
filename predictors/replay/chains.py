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


@dataclass
class Round:
    """A round of a ``session`` that starts at row ``start`` of a ``text`` and sees ``root``. Its methods are told how many tokens
    of a chain from there ``would`` be accepted."""

    text: RecordedText
    session: Session
    root: Root
    start: int

    def planned(self) -> int:
        """Most tokens to draft: what the session plans, within its cap and the budget."""
        wanted = self.session.plan(self.root)
        return min(self.root.cap, self.text.cap(self.start), self.root.cap if wanted is None else wanted)

    def law(self, would: int, place: int) -> RecordedLaw:
        """The draft's law behind ``place`` tokens of the chain; of a longer way beside the text than was recorded, the last
        one."""
        along = min(place, would)
        slot = min(place - along, self.text.slots - 1)
        return RecordedLaw(self.text, self.root, place, self.start + along, slot)

    def chain(self, would: int, most: int) -> Drafted:
        """A chain of at most ``most`` tokens, up to where the session stops or the text ends."""
        session, drafted, stops = self.session, Drafted(would), False
        if not session.stops and not self.text.ends:
            drafted.submitted = drafted.passes = max(most, 0)
            return drafted
        while drafted.submitted < most and not stops:
            place, asked = drafted.passes, session.asked
            law = self.law(would, place)
            drafted.passes += 1
            stops = bool(session.stop_before(law))
            if not stops:
                drafted.submitted += 1
                token = RecordedToken(law, on_path=place < would)
                drafted.ended = token.id in self.text.eos_tokens
                stops = bool(session.stop_after(token)) or drafted.ended
            if session.asked == asked:
                drafted.read(law)
        return drafted

    def sourced(self, sourced: Sourced, accepted: AcceptedAfter) -> Drafted:
        """What is drafted of what was found, and after it."""
        assert self.root.found is not None
        room = min(self.root.cap, self.text.cap(self.start))
        found = self.root.found.tokens[: min(sourced.looked_up, room)]
        ends = [place for place, token in enumerate(found) if token in self.text.eos_tokens]
        looked_up = ends[0] + 1 if ends else len(found)
        drafted = Drafted(accepted(self.start, looked_up), looked_up=looked_up)
        most = 0 if ends else min(sourced.drawn, room - looked_up)
        drafted.passes = self.drawn_after(looked_up, drafted.would, most)
        drafted.submitted = looked_up + drafted.passes
        return drafted

    def drawn_after(self, looked_up: int, would: int, most: int) -> int:
        """Tokens drawn after a lookup: ``most``, or up to an end of sequence."""
        if would < looked_up:
            return most
        for place in range(looked_up, looked_up + most):
            if RecordedToken(self.law(would, place), on_path=place < would).id in self.text.eos_tokens:
                return place - looked_up + 1
        return most


def replayed(text: RecordedText, policy: ChainPolicy, accepted: AcceptedAfter) -> Iterator[ReplayedRound]:
    """The rounds behind the prefill under ``policy``. `ValueError` if its depth or the layers that its controller reads were not
    recorded."""
    controller, depth, lookup = policy.controller, policy.depth, policy.lookup
    if depth > text.slots:
        raise BeyondRecordError(
            f"chains of {depth} tokens cannot be replayed on texts recorded with gamma_max={text.slots}. Raise "
            "traces.texts.gamma_max and collect again."
        )
    text = text.tapped(controller.kind, controller.layers, controller.draft_layers)
    session, start, previous, waiting = controller.start(text.settings), 1, None, 0
    while start < text.length:
        made = Round(text, session, text.root(start, depth, previous, lookup), start)
        sourced = session.source(made.root) if made.root.found is not None and made.root.found.length else None
        if sourced is None:
            most = made.planned()
            sourced = None if policy.drafts else Sourced(most)
        drafted = made.chain(accepted(start, 0), most) if sourced is None else made.sourced(sourced, accepted)
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
