"""The Parquet tables of a benchmark: one row per timed run, and one per loop-against-replay pair."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.arms import Run
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN, ROUND_LISTS
from pipelines.outputs import replacing
from predictors.rounds import PHASES, RoundRecord

SUMMED = ("drafted", "guessed", "levels", "accepted", "emitted", "rolled_back")
COUNTS = ("rounds", "tried", *SUMMED, "trimmed", "segments", "bypassed")  # tried: rounds with something to verify
HISTOGRAMS = ("accepted_histogram", "uncut_histogram")  # rounds by accepted tokens: all, and those of the longest draft
BRANCH_COUNTS = ("submitted", "idle_levels", "branch_points", "tested_points", "hits")
BRANCH_SECONDS = ("overlapped", "seconds_steady", "seconds_steady_wait")
MEASUREMENT_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("pair", "arm", "split", "slice", "document", "prompt")),
        ("prompt_tokens", pa.int32()),
        ("temperature", pa.float64()),
        ("repeat", pa.int32()),
        ("order", pa.int32()),
        ("tokens", pa.int32()),
        ("seconds", pa.float64()),  # of the wall's clock, or of the virtual one
        ("virtual", pa.bool_()),
        *((name, pa.int32()) for name in (*COUNTS, *BRANCH_COUNTS)),  # null where the arm keeps no round records
        *((name, pa.list_(pa.int32())) for name in HISTOGRAMS),
        *((f"round_{name}", pa.list_(pa.int32())) for name in ROUND_LISTS),  # one number per round
        *((name, pa.float64()) for name in BRANCH_SECONDS),
        *((f"seconds_{phase}", pa.float64()) for phase in (*PHASES, "rest")),
        ("equals_plain", pa.bool_()),  # greedy text equals the autoregressive arm's; null above temperature 0
        ("output", pa.list_(pa.int32())),
    ]
)
REPLAY_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("pair", "arm", "document", "prompt")),
        ("temperature", pa.float64()),
        ("repeat", pa.int32()),
        ("loop", pa.float64()),
        ("replay", pa.float64()),
    ]
)


def measured(run: Run, seconds: float) -> dict[str, Any]:
    """What one run took and did; counts of rounds leave the prefill out, seconds by phase include it.

    A run on the virtual clock (``run.virtual``) took its wall-clock ``seconds`` less what draft and target would have saved side
    by side; its ``seconds_draft`` are those in which the target waited for the draft.
    """
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
        **{name: sum(getattr(r, name) for r in rounds) for name in SUMMED},
        "tried": sum(r.drafted > 0 for r in rounds),
        "trimmed": sum(r.trimmed for r in rounds),
        "segments": sum(r.ends_segment for r in rounds),
        "bypassed": sum(r.bypassed for r in rounds),
        "accepted_histogram": accepted_histogram(rounds),
        "uncut_histogram": uncut_histogram(rounds),
        **{f"seconds_{phase}": value for phase, value in phases.items()},
        "seconds_rest": seconds - sum(phases.values()),
        "seconds_rounds": sum(sum(r.seconds.values()) for r in rounds),
        **{f"round_{name}": [int(getattr(r, name)) for r in rounds] for name in ROUND_LISTS},
        **_branching(run.rounds, overlapped),
    }


def _branching(records: Sequence[RoundRecord], overlapped: float) -> dict[str, Any]:
    """What rounds that draft beside the target add; ``records`` with the prefill. A branch point is *tested* if all before it is
    accepted; a *steady* round follows a hit, so that its block was drafted beside the target."""
    rounds = records[1:]
    points = [r for r in rounds if r.timeline and r.levels > r.idle_levels]
    steady = [record for before, record in pairwise(records) if not before.ends_segment]
    return {
        "submitted": sum(r.submitted for r in rounds),
        "idle_levels": sum(r.idle_levels for r in rounds),
        "branch_points": len(points),
        "tested_points": sum(r.accepted_in_sequence == r.submitted for r in points),
        "hits": sum(not r.ends_segment for r in rounds),
        "overlapped": overlapped,
        "seconds_steady": sum(_target_seconds(r)[0] for r in steady),
        "seconds_steady_wait": sum(_target_seconds(r)[1] for r in steady),
    }


def _target_seconds(record: RoundRecord) -> tuple[float, float]:
    """How long the target's lane of a round is, and how long it waits in it."""
    spans = [span for span in record.timeline if span.lane == "target"]
    waited = sum(span.end - span.start for span in spans if span.phase == "wait")
    return max(span.end for span in spans) - min(span.start for span in spans), waited


def accepted_histogram(rounds: Sequence[RoundRecord]) -> list[int]:
    """Number of rounds by accepted tokens, from 0 to the most seen."""
    counts = [0] * (1 + max((record.accepted for record in rounds), default=0))
    for record_ in rounds:
        counts[record_.accepted] += 1
    return counts


def uncut_histogram(rounds: Sequence[RoundRecord]) -> list[int]:
    """Number of rounds by accepted tokens, from 0 to the longest draft, of the rounds that drafted as much as any: of a static
    length, those that neither the budget nor an end-of-sequence token cut short."""
    longest = max((record.levels for record in rounds), default=0)
    counts = accepted_histogram([record for record in rounds if record.levels == longest])
    return counts + [0] * (longest + 1 - len(counts))


def write_measurements(path: Path, pair: str, rows: Rows) -> None:
    """Write the table of runs, with the comparison of greedy texts."""
    plain = {(row["split"], row["prompt"]): row["output"] for row in _greedy(rows) if row["arm"] == PLAIN}
    compared = {id(row): row["output"] == plain.get((row["split"], row["prompt"])) for row in _greedy(rows)}
    known = {id(row): (row["split"], row["prompt"]) in plain for row in rows}
    columns = [{"pair": pair, **row, "equals_plain": compared.get(id(row)) if known[id(row)] else None} for row in rows]
    _write(path, columns, MEASUREMENT_SCHEMA)


def write_replays(path: Path, pair: str, rows: Rows) -> None:
    """Write the table of loop and replay times."""
    _write(path, [{"pair": pair, **row} for row in rows], REPLAY_SCHEMA)


def _greedy(rows: Rows) -> Rows:
    return [row for row in rows if row["temperature"] == 0]


def _write(path: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> None:
    with replacing(path) as partial:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), partial)
