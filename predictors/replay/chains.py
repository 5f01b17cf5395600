"""The sequential loop on a recorded text: a controller's session decides, the text says what was accepted.

The same hooks in the same order as `runtime.decoding.sequential` and `runtime.drafting.chain`, with `predictors.signals` that
were recorded. Given the text, accepted counts and what was drafted beside it have exactly the law of decoding with a tokenwise
verifier (tests/trace_collection/test_texts.py enumerates both). For block verification the counts are exact too, and the
tokens behind a rejection are drawn as a tokenwise verifier would have rejected them, which only a controller's decisions there
can tell.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from predictors.controllers.base import Controller, Session
from predictors.replay.text import BeyondRecordError, RecordedLaw, RecordedText, RecordedToken
from predictors.rounds import Forecast, RoundRecord

Accepted = Callable[
    [int], int
]  # by the row where a round starts: drafted tokens that the verifier would accept, of any number


@dataclass(frozen=True)
class ReplayedRound:
    """One round behind ``context`` cached tokens: ``submitted`` tokens, draft ``passes``, questions ``asked`` of a model, and
    ``emitted`` tokens of which ``accepted`` were drafted; ``forecasts`` are what a model said of them. Of laws about
    which no model was asked, the host read the confidence of ``confidences`` and also the entropy of ``entropies``."""

    context: int
    submitted: int
    passes: int
    asked: int
    accepted: int
    emitted: int
    confidences: int = 0
    entropies: int = 0
    forecasts: tuple[Forecast, ...] = ()


@dataclass
class Readings:
    """Laws that the host read without asking a model, as `ReplayedRound` counts them."""

    confidences: int = 0
    entropies: int = 0

    def read(self, law: RecordedLaw) -> None:
        """Count what the host read of ``law``."""
        self.entropies += law.entropy_read
        self.confidences += law.confidence_read and not law.entropy_read


@dataclass
class Drafted(Readings):
    """What was drafted in a round: ``submitted`` tokens in ``passes``, and the laws read."""

    submitted: int = 0
    passes: int = 0


def replayed(text: RecordedText, controller: Controller, depth: int, accepted: Accepted) -> Iterator[ReplayedRound]:
    """The rounds behind the prefill in which ``controller`` decides about chains of at most ``depth`` tokens.

    Raises
    ------
    ValueError
        If ``depth`` or the layers that ``controller`` reads were not recorded.
    """
    if depth > text.slots:
        raise BeyondRecordError(
            f"chains of {depth} tokens cannot be replayed on texts recorded with gamma_max={text.slots}. Raise "
            "traces.texts.gamma_max and collect again."
        )
    text.require_layers(controller.kind, controller.layers, controller.draft_layers)
    session, start, previous = controller.start(text.settings), 1, None
    while start < text.length:
        would = accepted(start)
        drafted = _drafted(text, session, start, depth, would, previous)
        submitted = drafted.submitted
        kept = min(would, submitted)
        emitted = min(kept + 1, text.length - start)
        previous = RoundRecord(drafted=submitted, accepted=kept, emitted=emitted, rolled_back=submitted - kept)
        previous.bypassed = session.bypassed
        session.end_round(previous)
        context, read = text.prompt_tokens + start - 1, (drafted.confidences, drafted.entropies)
        said = tuple(session.forecasts)
        yield ReplayedRound(context, submitted, drafted.passes, session.asked, kept, emitted, *read, said)
        start += emitted


def _drafted(
    text: RecordedText,
    session: Session,
    start: int,
    depth: int,
    would: int,
    previous: RoundRecord | None,
) -> Drafted:
    """What a round drafts that would accept ``would`` tokens."""
    root = text.root(start, depth, previous)
    planned = session.plan(root)
    cap = min(depth, text.cap(start), depth if planned is None else planned)
    drafted, stops = Drafted(), False
    while drafted.submitted < cap and not stops:
        place, asked = drafted.passes, session.asked
        law = RecordedLaw(text, root, place, start + min(place, would), place - min(place, would))
        drafted.passes += 1
        stops = bool(session.stop_before(law))
        if not stops:
            drafted.submitted += 1
            drawn = RecordedToken(law, on_path=place < would)
            stops = bool(session.stop_after(drawn)) or int(drawn.token) in text.eos_tokens
        if session.asked == asked:
            drafted.read(law)
    return drafted
