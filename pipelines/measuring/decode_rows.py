"""A decode and its rounds as rows of the tables of what is timed (`pipelines.measuring.tables`), in plain Python.

Counts of a decode leave its prefill out, seconds by phase include it. Of a run on the virtual clock (``virtual``) ``seconds`` are
the wall's less what draft and target would have saved side by side (``overlapped``), and ``seconds_draft`` those in which the
target waited for the draft; rounds keep both apart.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from pipelines.measuring.measurement_log import Rows
from predictors.rounds import PHASES, RoundRecord

if TYPE_CHECKING:  # who reads tables needs no models
    from pipelines.measuring.arms import Run

SUMMED = (
    "drafted",
    "guessed",
    "levels",
    "accepted",
    "emitted",
    "rolled_back",
    "trimmed",
    "looked_up",
    "bypassed",
    "submitted",
    "asked",
    "idle_levels",
)
# tried: rounds with something to verify
COUNTED = ("rounds", "tried", "segments", "branch_points", "tested_points", "hits")
SECONDS = (*(f"seconds_{phase}" for phase in PHASES), "overlapped")
STEADY = ("seconds_steady", "seconds_steady_wait")  # of rounds after a hit
OF_ROUND = (
    "context",
    "passes",
    "submitted",
    "nodes",
    "guessed",
    "asked",
    "accepted",
    "emitted",
    "idle_levels",
    "levels",
    "drafted",
    "looked_up",
    "candidates",
)


def measured(run: "Run", seconds: float) -> dict[str, Any]:
    """Put one run's times and counts into columns of `DECODES`."""
    overlapped = sum(record.overlapped for record in run.rounds or ())
    virtual = run.virtual or overlapped > 0
    seconds -= overlapped
    row: dict[str, Any] = {"tokens": len(run.tokens), "seconds": seconds, "virtual": virtual, "output": run.tokens}
    if run.rounds is None:
        return row
    rounds = run.rounds[1:]
    phases = {phase: sum(r.seconds.get(phase, 0.0) for r in run.rounds) for phase in PHASES}
    phases["draft"] -= overlapped
    return row | {
        "rounds": len(rounds),
        "tried": sum(r.drafted > 0 for r in rounds),
        "segments": sum(r.ends_segment for r in rounds),
        **{name: int(sum(getattr(r, name) for r in rounds)) for name in SUMMED},
        **{f"seconds_{phase}": value for phase, value in phases.items()},
        "seconds_rest": seconds - sum(phases.values()),
        "seconds_rounds": sum(sum(r.seconds.values()) for r in rounds),
        "overlapped": overlapped,
        **_branching(run.rounds),
    }


def rounds_of(run: "Run", prompt_tokens: int) -> Rows:
    """The rounds of one run as columns of `ROUNDS`, the prefill first; none where the arm keeps no records."""
    records = run.rounds or []
    emitted = [record.emitted for record in records[1:]]
    contexts = [0, *accumulate(emitted[:-1], initial=prompt_tokens)]  # cached: all but the newest token
    return [
        {
            "round": index,
            "prefill": index == 0,
            "context": context,
            **{name: int(getattr(record, name)) for name in OF_ROUND if name != "context"},
            "law_known": record.law_known,
            "ends_segment": record.ends_segment,
            **{f"seconds_{phase}": record.seconds.get(phase, 0.0) for phase in PHASES},
            "overlapped": record.overlapped,
        }
        for index, (record, context) in enumerate(zip(records, contexts, strict=False))
    ]


def _branching(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """What rounds that draft beside the target add; ``records`` with the prefill. A branch point is *tested* if all before it is
    accepted; a *steady* round follows a hit, so that its block was drafted beside the target."""
    rounds = records[1:]
    points = [r for r in rounds if r.concurrent and r.levels > r.idle_levels]
    steady = [record for before, record in pairwise(records) if not before.ends_segment]
    return {
        "branch_points": len(points),
        "tested_points": sum(r.accepted_in_sequence == r.submitted for r in points),
        "hits": sum(not r.ends_segment for r in rounds),
        "seconds_steady": sum(sum(r.seconds.values()) - r.overlapped for r in steady),
        "seconds_steady_wait": sum(_waited(r) for r in steady),
    }


def _waited(record: RoundRecord) -> float:
    """Seconds of a round in which the target waits for the draft."""
    return record.seconds.get("draft", 0.0) + record.seconds.get("wait", 0.0) - record.overlapped
