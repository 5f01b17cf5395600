"""The sequential loop on a recorded text: a controller's session decides, the text determines what was accepted.

The same hooks in the same order as `runtime.decoding.sequential` and `runtime.drafting.chain`, with `predictors.signals` that
were recorded. Given the text, accepted counts and drafts are distributed exactly as in decoding with a tokenwise verifier.
For block verification counts and the rejected token are exact too, and the tokens after that are drawn as a tokenwise one would.

With a lookup, a controller may draft ``Sourced(n, m)``: n tokens of what was found, then m drawn ones. They are a chain whose
first n rows are one-hot, so that `predictors.replay.acceptance` holds with ratios

    1 / p(y)  at a token of the lookup that is the text's,  0 at one that is not,  the recorded ones after it

Not recorded is what would be drawn after a *wrong* lookup: there no end-of-sequence token ends the draft. After a right one it
is what is drawn at the root after it, which differs only for a draft that reads the target's states.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from predictors.controllers.base import Controller, Session, Sourced
from predictors.lookup import LookupSettings
from predictors.replay.acceptance import BeyondRecordError
from predictors.replay.text import RecordedLaw, RecordedText, RecordedToken
from predictors.rounds import ReplayedRound
from predictors.signals import Root


@dataclass(frozen=True)
class ChainPolicy:
    """Policy for chains of at most ``depth`` tokens, verified by rule ``verifier``: ``controller`` decides about them, and about
    what ``lookup`` finds, if the drafter has one. ``drafts``: there is a draft model; without one a plan is about the lookup.
    ``leaves``: the most beside the tokens of a chain, by level."""

    controller: Controller
    depth: int
    verifier: str = "block"
    lookup: LookupSettings | None = None
    drafts: bool = True
    leaves: tuple[int, ...] = ()


@dataclass
class ChainRound:
    """A round in the making: a ``session`` drafts from row ``start`` of a ``text`` and sees ``root``. Of any number of tokens
    drafted like its own ``would`` be accepted; its last one ``ended`` the text; ``leaves`` go beside them, a lookup's nodes among
    them. All else is counted as in `ReplayedRound`."""

    text: RecordedText
    session: Session
    root: Root
    start: int
    would: int = -1  # not known yet, nor asked for by what drafts
    submitted: int = 0
    passes: int = 0
    looked_up: int = 0
    confidences: int = 0
    entropies: int = 0
    ended: bool = False
    leaves: int = 0
    beyond: int = 0

    def planned(self) -> int:
        """Return the most tokens to draft: what the session plans, within its cap and the budget."""
        wanted = self.session.plan(self.root)
        return min(self.root.cap, self.text.cap(self.start), self.root.cap if wanted is None else wanted)

    def law(self, place: int) -> RecordedLaw:
        """Return the draft's distribution after ``place`` tokens of the chain."""
        return RecordedLaw(self.text, self.root, place, self.start, place)

    def leafed(self, most: Sequence[int]) -> None:
        """Put leaves beside the chain that was drafted, at ``most`` so many at each level."""
        laws = [self.law(place) for place in range(self.submitted)]
        widths = self.session.widths(laws)
        if widths is None:
            widths = [1 + count for count in (*most, *[0] * len(laws))[: len(laws)]]
        widths = list(takewhile(bool, widths))
        self.submitted, self.leaves = len(widths), sum(widths) - len(widths)
        self.would = min(self.would, self.submitted)
        if self.would < len(widths) and self.text.number("rank", self.start, self.would) < widths[self.would]:
            self.would += 1
        if self.root.found is not None and self.root.found.length:
            self.beside(self.found(self.session.beside(self.root)))

    def found(self, most: int) -> tuple[int, ...]:
        """Return the first ``most`` tokens that were found, within cap and budget, up to an end of sequence."""
        assert self.root.found is not None
        found = self.root.found.tokens[: min(most, self.root.cap, self.text.cap(self.start))]
        ends = [place for place, token in enumerate(found, start=1) if token in self.text.eos_tokens]
        return found[: ends[0]] if ends else found

    def beside(self, found: Sequence[int]) -> None:
        """Put ``found`` tokens beside the chain and its leaves, in nodes of their own from where they part from them; of wrong
        leaves it is not known whether they do."""
        chain = self.text.columns["tokens"][self.start - 1, : self.submitted].tolist()
        shared = sum(takewhile(bool, (int(one == other) for one, other in zip(found, chain, strict=False))))
        right = min(self.text.accepted(len(found))[self.start], len(found)) if len(found) else 0
        shared += shared < min(right, self.would)  # a leaf's
        self.beyond = max(len(found) - self.submitted, 0)
        self.leaves += len(found) - shared - self.beyond
        self.submitted += self.beyond
        self.would = max(self.would, right)

    def chain(self, most: int) -> None:
        """Draft a chain of at most ``most`` tokens, up to where the session stops or the text ends."""
        self.would, session, stops = self.text.accepted()[self.start], self.session, False
        if not session.stops and not self.text.ends:
            self.submitted = self.passes = max(most, 0)
            return
        while self.submitted < most and not stops:
            asked, law = session.asked, self.law(self.passes)
            self.passes += 1
            stops = bool(session.stop_before(law))
            if not stops:
                token = RecordedToken(law)
                self.submitted += 1
                self.ended = token.id in self.text.eos_tokens
                stops = bool(session.stop_after(token)) or self.ended
            if session.asked == asked:
                self.entropies += law.entropy_read
                self.confidences += law.confidence_read and not law.entropy_read

    def sourced(self, sourced: Sourced) -> None:
        """Draft tokens that were found, and tokens after them."""
        assert self.root.found is not None
        room, found = min(self.root.cap, self.text.cap(self.start)), self.found(sourced.looked_up)
        self.looked_up, ends = len(found), found and found[-1] in self.text.eos_tokens
        self.would = self.text.accepted(self.looked_up)[self.start]
        self.passes = self.drawn_after_lookup(0 if ends else min(sourced.drawn, room - self.looked_up))
        self.submitted = self.looked_up + self.passes

    def drawn_after_lookup(self, most: int) -> int:
        """Return ``most``, or the number of drawn tokens up to an end of sequence."""
        row = self.start + self.looked_up
        if self.would >= self.looked_up and row < self.text.length:
            for place, token in enumerate(self.text.columns["tokens"][row - 1, :most].tolist(), start=1):
                if token in self.text.eos_tokens:
                    return place
        return most

    def record(self, **further: Any) -> ReplayedRound:
        """Record what was drafted, and what came of it; ``further``: entries of a `ReplayedRound`."""
        accepted = min(self.would, self.submitted)
        return ReplayedRound(
            context=self.text.prompt_tokens + self.start - 1,
            submitted=self.submitted,
            passes=self.passes,
            asked=self.session.asked,
            accepted=accepted,
            emitted=min(accepted + 1, self.text.length - self.start),
            looked_up=self.looked_up,
            bypassed=self.session.bypassed,
            forecasts=() if self.leaves else tuple(self.session.forecasts),
            confidences=self.confidences,
            entropies=self.entropies,
            beyond=self.beyond,
            **further,
        )


def replayed(text: RecordedText, policy: ChainPolicy) -> Iterator[ReplayedRound]:
    """Replay the rounds after the prefill under ``policy``. `ValueError` if its depth, verifier or lookup or the layers that its
    controller reads were not recorded."""
    controller, depth, lookup = policy.controller, policy.depth, policy.lookup
    text.require_verifier(policy.verifier)
    if lookup is not None:
        text.require_lookup(lookup)
    if depth > text.slots:
        raise BeyondRecordError(
            f"chains of {depth} tokens cannot be replayed on texts recorded with gamma_max={text.slots}. Raise "
            "traces.texts.gamma_max and collect again."
        )
    text = text.tapped(controller.kind, controller.layers, controller.draft_layers)
    session, start, previous, waiting = controller.start(text.settings), 1, None, 0
    while start < text.length:
        made = ChainRound(text, session, text.root(start, depth, previous, lookup), start)
        sourced = session.source(made.root) if made.root.found is not None and made.root.found.length else None
        if sourced is None:
            most = made.planned()
            sourced = None if policy.drafts else Sourced(most)
        if sourced is None:
            made.chain(most)
            if policy.leaves and text.settings.read_off:
                made.leafed(policy.leaves)
        else:
            made.sourced(sourced)
        behind = waiting + made.looked_up if made.passes and (lookup is not None or text.reads_states) else 0
        rolled_back = max(made.submitted - made.would, 0)
        previous = made.record(drafted=made.submitted + made.leaves, rolled_back=rolled_back, behind=behind)
        session.end_round(previous)
        yield previous
        if made.passes:
            waiting = previous.emitted - 1 if text.reads_states else 0
        else:
            waiting += previous.emitted
        start += previous.emitted
