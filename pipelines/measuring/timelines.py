"""When draft and target worked in one short greedy generation of each decoder: what the report draws as a pipeline.

A span is [lane, phase, start, end, beside]: seconds since the request began, and whether the draft worked beside the target's
pass. Decoders that keep no timeline work one phase after another; theirs is laid out from the rounds' seconds by phase.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from predictors.rounds import RoundRecord, Span
from runtime import Decoder, Randomness

MAX_TOKENS, RUNS = 48, 2
COUNTS = ("levels", "idle_levels", "submitted", "accepted", "emitted", "rolled_back", "trimmed")
IN_TURN = (("controller", "draft"), ("draft", "draft"), ("target", "target"), ("verify", "target"))  # phase, lane
IN_TURN_PREFILL = (("target", "target"), ("verify", "target"), ("draft", "draft"))
Timelines = dict[str, list[dict[str, Any]]]


def record_timelines(decoders: Mapping[str, Decoder], prompt: list[int], max_new_tokens: int = MAX_TOKENS) -> Timelines:
    """Rounds of one greedy generation by arm, as JSON: the faster of `RUNS` in turn with the other arms'.

    A round holds its ``spans``, its counts by the names of `RoundRecord`, ``hit`` (a branch survived) and ``prefill``.
    """
    options: dict[str, Any] = {"max_new_tokens": min(max_new_tokens, MAX_TOKENS), "temperature": 0.0}
    runs: dict[str, list[list[RoundRecord]]] = {name: [] for name in decoders}
    for _ in range(RUNS):
        for name, decoder in decoders.items():
            runs[name].append(decoder.generate(prompt, randomness=Randomness(0), **options).rounds)

    def seconds(records: Iterable[RoundRecord]) -> float:  # what a run took on its own clock
        return sum(sum(record.seconds.values()) - record.overlapped for record in records)

    return {name: list(rounds_of(min(some, key=seconds))) for name, some in runs.items()}


def rounds_of(records: Iterable[RoundRecord]) -> Iterator[dict[str, Any]]:
    """The rounds of one request, the prefill first."""
    now = 0.0
    for index, record in enumerate(records):
        spans = record.timeline or _in_turn(record, now, prefill=index == 0)
        now = max((span.end for span in spans), default=now)
        counts = {name: getattr(record, name) for name in COUNTS}
        drawn = list(_rows(spans, bool(record.timeline)))
        yield {"prefill": index == 0, "hit": not record.ends_segment, **counts, "spans": drawn}


def _in_turn(record: RoundRecord, now: float, prefill: bool) -> list[Span]:
    """A round's phases laid out one after another; the target's lane waits for the draft's."""
    spans = []
    for phase, lane in IN_TURN_PREFILL if prefill else IN_TURN:
        seconds = record.seconds.get(phase, 0.0)
        if seconds:
            spans.append(Span(lane, phase, now, now + seconds))
            if lane == "draft":
                spans.append(Span("target", "wait", now, now + seconds))
            now += seconds
    return spans


def _rows(spans: Iterable[Span], overlapping: bool) -> Iterator[list[Any]]:
    """Spans in the order of a round's record: the draft's before the target's pass are work for it, those behind it beside it."""
    begun = False
    for span in spans:
        begun = begun or span.phase == "target"
        beside = overlapping and begun and span.lane == "draft"
        yield [span.lane, span.phase, round(span.start, 6), round(span.end, 6), beside]
