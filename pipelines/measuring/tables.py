"""The Parquet tables of what is timed: `DECODES`, a row per decode, and `ROUNDS`, a row per round of decodes that keep records;
`LOOP`, seconds of a decode in the loop and of its model calls alone.

Rows with one ``block`` were timed interleaved in one go (one prompt, one setting, one repeat), and compare pairwise. Counts of a
decode leave its prefill out, seconds by phase include it. Of a run on the virtual clock (``virtual``) ``seconds`` are the wall's
less what draft and target would have saved side by side (``overlapped``), and ``seconds_draft`` those in which the target waited
for the draft; rounds keep both apart.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN
from pipelines.outputs import replacing
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
    "bypassed",
    "submitted",
    "asked",
    "idle_levels",
)
# tried: rounds with something to verify
COUNTED = ("rounds", "tried", "segments", "branch_points", "tested_points", "hits")
HISTOGRAMS = ("accepted_histogram", "uncut_histogram")  # rounds by accepted tokens: all, and those of the longest draft
SECONDS = (*(f"seconds_{phase}" for phase in PHASES), "overlapped")
STEADY = ("seconds_steady", "seconds_steady_wait")  # of the target's lane in rounds after a hit
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
    "candidates",
)
SETTING = (("temperature", pa.float64()), ("top_k", pa.int32()), ("top_p", pa.float64()))
DECODE_NAMES = ("pair", "arm", "family", "verifier", "split", "slice", "document", "prompt")
DECODES = pa.schema(
    [
        *((name, pa.string()) for name in DECODE_NAMES),
        ("prompt_tokens", pa.int32()),
        *SETTING,
        ("repeat", pa.int32()),
        ("order", pa.int32()),  # turn within its block, the first is 0
        ("block", pa.string()),
        ("seed", pa.int64()),  # of prompt, setting and repeat
        ("led", pa.bool_()),  # along a recorded text
        ("tokens", pa.int32()),
        ("seconds", pa.float64()),
        ("virtual", pa.bool_()),
        *((name, pa.int32()) for name in (*COUNTED, *SUMMED)),  # null where the arm keeps no records of rounds
        *((name, pa.list_(pa.int32())) for name in HISTOGRAMS),
        *((name, pa.float64()) for name in (*SECONDS, "seconds_rest", "seconds_rounds", *STEADY)),
        ("equals_plain", pa.bool_()),  # greedy text equals plain decoding's; null above temperature 0
        ("output", pa.list_(pa.int32())),
    ]
)
ROUNDS = pa.schema(
    [
        *((name, pa.string()) for name in ("arm", "split", "prompt")),
        *SETTING,
        ("repeat", pa.int32()),
        ("block", pa.string()),
        ("round", pa.int32()),  # 0 is the prefill
        ("prefill", pa.bool_()),
        *((name, pa.int32()) for name in OF_ROUND),
        *((name, pa.bool_()) for name in ("law_known", "ends_segment")),
        *((name, pa.float64()) for name in SECONDS),
    ]
)
LOOP = pa.schema(
    [
        *((name, pa.string()) for name in ("arm", "document", "prompt")),
        ("temperature", pa.float64()),
        ("repeat", pa.int32()),
        ("loop", pa.float64()),
        ("passes", pa.float64()),
    ]
)


def measured(run: "Run", seconds: float) -> dict[str, Any]:
    """What one run took and did, as columns of `DECODES`."""
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
        "accepted_histogram": accepted_histogram(rounds),
        "uncut_histogram": uncut_histogram(rounds),
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


def write_decodes(path: Path, rows: Rows) -> None:
    """Write rows of `DECODES`; ``equals_plain`` is filled in from plain decoding's greedy outputs."""
    plain = {(row["split"], row["prompt"]): row["output"] for row in _greedy(rows) if row["arm"] == PLAIN}
    known = [row["temperature"] == 0 and (row["split"], row["prompt"]) in plain for row in rows]
    compared = [
        row | {"equals_plain": row["output"] == plain[row["split"], row["prompt"]] if compares else None}
        for row, compares in zip(rows, known, strict=True)
    ]
    _write(path, compared, DECODES)


def write_rounds(path: Path, rows: Rows) -> None:
    """Write rows of `ROUNDS`."""
    _write(path, rows, ROUNDS)


def write_loop(path: Path, rows: Rows) -> None:
    """Write rows of `LOOP`."""
    _write(path, rows, LOOP)


def read_decodes(path: Path) -> Rows:
    """Rows of `DECODES`.

    Raises
    ------
    ValueError
        If the file is missing, damaged or of another kind.
    """
    rows: Rows = read_table(path, DECODES).to_pylist()
    return rows


def read_rounds(path: Path) -> Rows:
    """Rows of `ROUNDS`; errors as of `read_decodes`."""
    rows: Rows = read_table(path, ROUNDS).to_pylist()
    return rows


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """A table of ``schema``; errors as of `read_decodes`."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path}: missing or damaged ({error}). Run the measure stage (dvc repro) again.") from error
    if table.schema.names != schema.names:
        other = sorted(set(table.schema.names) ^ set(schema.names))
        raise ValueError(f"{path}: columns {other} are of another version. Run the measure stage (dvc repro) again.")
    return table


def _branching(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """What rounds that draft beside the target add; ``records`` with the prefill. A branch point is *tested* if all before it is
    accepted; a *steady* round follows a hit, so that its block was drafted beside the target."""
    rounds = records[1:]
    points = [r for r in rounds if r.timeline and r.levels > r.idle_levels]
    steady = [record for before, record in pairwise(records) if not before.ends_segment]
    return {
        "branch_points": len(points),
        "tested_points": sum(r.accepted_in_sequence == r.submitted for r in points),
        "hits": sum(not r.ends_segment for r in rounds),
        "seconds_steady": sum(_target_seconds(r)[0] for r in steady),
        "seconds_steady_wait": sum(_target_seconds(r)[1] for r in steady),
    }


def _target_seconds(record: RoundRecord) -> tuple[float, float]:
    """How long the target's lane of a round is, and how long it waits in it."""
    spans = [span for span in record.timeline if span.lane == "target"]
    waited = sum(span.end - span.start for span in spans if span.phase == "wait")
    return max(span.end for span in spans) - min(span.start for span in spans), waited


def _greedy(rows: Rows) -> Rows:
    return [row for row in rows if row["temperature"] == 0]


def _write(path: Path, rows: Rows, schema: pa.Schema) -> None:
    names = set(schema.names)
    for row in rows:
        unknown = sorted(row.keys() - names)
        if unknown:
            known = ", ".join(schema.names)
            raise ValueError(f"{path.name}: no column {unknown[0]!r} for a row to write. Columns: {known}.")
    with replacing(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)

