"""The Parquet tables of what is timed: `DECODES`, a row per decode, and `ROUNDS`, a row per round of decodes that keep records;
then of what is replayed.

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

from pipelines.measuring.names import DECODES_FILE, PLAIN, ROUNDS_FILE
from pipelines.outputs import replacing
from predictors.rounds import PHASES, RoundRecord

if TYPE_CHECKING:  # who reads tables needs no models
    from pipelines.measuring.arms import ArmRun


Rows = list[dict[str, Any]]
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


def columns(kind: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    """Columns of one kind, for a schema."""
    return [(name, kind) for name in names]


SETTING = (("temperature", pa.float64()), ("top_k", pa.int32()), ("top_p", pa.float64()), ("invariant", pa.bool_()))
DECODES = pa.schema(
    [
        *columns(pa.string(), "pair", "arm", "family", "verifier", "split", "slice", "document", "prompt"),
        ("prompt_tokens", pa.int32()),
        *SETTING,
        ("repeat", pa.int32()),
        ("order", pa.int32()),  # turn within its block, the first is 0
        ("block", pa.string()),
        ("seed", pa.int64()),  # of prompt and setting
        ("tokens", pa.int32()),
        ("seconds", pa.float64()),
        (
            "profiled",
            pa.float64(),
        ),  # seconds that the latency profile gives its rounds; null where it was not asked, or knows none
        ("virtual", pa.bool_()),
        *columns(pa.int32(), *COUNTED, *SUMMED),  # null where the arm keeps no records of rounds
        *columns(pa.float64(), *SECONDS, "seconds_rest", "seconds_rounds", *STEADY),
        ("equals_plain", pa.bool_()),  # greedy text equals plain decoding's; null above temperature 0
        ("output", pa.list_(pa.int32())),
    ]
)
ROUNDS = pa.schema(
    [
        *columns(pa.string(), "arm", "split", "prompt"),
        *SETTING,
        ("repeat", pa.int32()),
        ("block", pa.string()),
        ("round", pa.int32()),  # 0 is the prefill
        ("prefill", pa.bool_()),
        *columns(pa.int32(), *OF_ROUND),
        *columns(pa.bool_(), "law_known", "ends_segment"),
        *columns(pa.float64(), *SECONDS),
    ]
)
# Replayed decodes: a row per text and policy.
REPLAYED, POLICIES = "replay.parquet", "policies.json"
BRANCHES = "branches"  # family, on the virtual clock
ORACLE = "oracle"  # arm and family: knows what will be accepted
COUNTS = ("rounds", "submitted", "passes", "accepted", "asked", "looked_up")
REPLAY_ROWS = pa.schema(
    [
        *columns(pa.string(), "split", "setting", "prompt", "document", "slice", "family", "drafter"),
        ("prompt_tokens", pa.int32()),
        *columns(pa.float64(), "tokens", "seconds", *COUNTS),
    ]
)


def replayed_at(cost_ratio: float) -> str:
    """The file of the same policies on a machine with another cost ratio."""
    return f"replay-c{cost_ratio:g}.parquet"


def write_decodes(path: Path, rows: Rows) -> None:
    """Write rows of `DECODES`; ``equals_plain`` is filled in from plain decoding's greedy outputs."""
    greedy = [row for row in rows if row["temperature"] == 0]
    plain = {(row["split"], row["prompt"]): row["output"] for row in greedy if row["arm"] == PLAIN}
    compared = []
    for row in rows:
        text = plain.get((row["split"], row["prompt"])) if row["temperature"] == 0 else None
        compared.append(row | {"equals_plain": None if text is None else row["output"] == text})
    write_table(path, compared, DECODES)


def write_rounds(path: Path, rows: Rows) -> None:
    """Write rows of `ROUNDS`."""
    write_table(path, rows, ROUNDS)


def write_timed(folder: Path, pair: str, decodes: Rows, rounds: Rows) -> None:
    """Write both tables of what was timed of the pair of that name."""
    write_decodes(folder / DECODES_FILE, [{"pair": pair, **row} for row in decodes])
    write_rounds(folder / ROUNDS_FILE, rounds)


def read_decodes(path: Path) -> Rows:
    """Rows of `DECODES`; errors as of `read_table`."""
    return list(read_table(path, DECODES).to_pylist())


def read_rounds(path: Path) -> Rows:
    """Rows of `ROUNDS`; errors as of `read_table`."""
    return list(read_table(path, ROUNDS).to_pylist())


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """A table of ``schema``. `ValueError` if the file is missing, damaged or of another kind."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path}: missing or damaged ({error}). Run the measure stage (dvc repro) again.") from error
    if table.schema.names != schema.names:
        other = sorted(set(table.schema.names) ^ set(schema.names))
        raise ValueError(f"{path}: columns {other} are of another version. Run the measure stage (dvc repro) again.")
    return table


def write_table(path: Path, rows: Rows, schema: pa.Schema) -> None:
    """Write ``rows``, whole or not at all; `ValueError` for one with another column."""
    unknown = sorted({name for row in rows for name in row} - set(schema.names))
    if unknown:
        known = ", ".join(schema.names)
        raise ValueError(f"{path.name}: no column {unknown[0]!r} for a row to write. Columns: {known}.")
    with replacing(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)


def measured(run: "ArmRun", seconds: float) -> dict[str, Any]:
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


def rounds_of(run: "ArmRun", prompt_tokens: int) -> Rows:
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
