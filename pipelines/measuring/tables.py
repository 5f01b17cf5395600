"""The Parquet tables of what is timed: `DECODES`, a row per decode, and `ROUNDS`, a row per round of decodes that keep records;
then of what is replayed.

Rows with one ``block`` were timed interleaved in one go (one prompt, one setting, one repeat), and compare pairwise. What their
counts and seconds mean says `pipelines.measuring.decode_rows`.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.decode_rows import COUNTED, OF_ROUND, SECONDS, STEADY, SUMMED
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import DECODES_FILE, PLAIN, ROUNDS_FILE
from pipelines.outputs import replacing


def columns(kind: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    """Columns of one kind, for a schema."""
    return [(name, kind) for name in names]


SETTING = (("temperature", pa.float64()), ("top_k", pa.int32()), ("top_p", pa.float64()))
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
