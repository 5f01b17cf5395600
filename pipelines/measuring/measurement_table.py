"""The Parquet tables of a benchmark: one row per timed run, and one per loop-against-replay pair."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.arms import Run
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN
from pipelines.outputs import replacing
from predictors.rounds import PHASES, RoundRecord

COUNTS = ("rounds", "drafted", "levels", "accepted", "emitted", "rolled_back", "trimmed", "segments", "bypassed")
HISTOGRAMS = ("accepted_histogram", "uncut_histogram")  # rounds by accepted tokens: all, and those of the longest draft
SUMMED = ("drafted", "levels", "accepted", "emitted", "rolled_back")
MEASUREMENT_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("pair", "arm", "split", "slice", "document", "prompt")),
        ("prompt_tokens", pa.int32()),
        ("temperature", pa.float64()),
        ("repeat", pa.int32()),
        ("order", pa.int32()),
        ("tokens", pa.int32()),
        ("seconds", pa.float64()),
        *((name, pa.int32()) for name in COUNTS),  # null where the arm keeps no round records
        *((name, pa.list_(pa.int32())) for name in HISTOGRAMS),
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
    """What one run took and did; counts of rounds leave the prefill out, seconds by phase include it."""
    row: dict[str, Any] = {"tokens": len(run.tokens), "seconds": seconds, "output": run.tokens}
    if run.rounds is None:
        return row
    rounds = run.rounds[1:]
    phases = {phase: sum(r.seconds.get(phase, 0.0) for r in run.rounds) for phase in PHASES}
    return row | {
        "rounds": len(rounds),
        **{name: sum(getattr(r, name) for r in rounds) for name in SUMMED},
        "trimmed": sum(r.trimmed for r in rounds),
        "segments": sum(r.ends_segment for r in rounds),
        "bypassed": sum(r.bypassed for r in rounds),
        "accepted_histogram": accepted_histogram(rounds),
        "uncut_histogram": uncut_histogram(rounds),
        **{f"seconds_{phase}": value for phase, value in phases.items()},
        "seconds_rest": seconds - sum(phases.values()),
    }


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
