"""The prompts stage's output: one Parquet file, in an order whose every prefix alternates slices and documents."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.outputs import replacing
from predictors.schema import SPLITS as MEASURED_SPLITS  # what stages collect, measure and report
from predictors.schema import Prompt

FILE = "prompts.parquet"
SPLITS = ("drafter", *MEASURED_SPLITS, "reserve")  # for training a drafter; the last for a gate that has to look again
TEXTS = ("id", "document", "source", "slice", "split", "text")


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as partial:
        pq.write_table(pa.Table.from_pylist([vars(prompt) for prompt in prompts], schema=_schema()), partial)


def read_prompts(path: Path, split: str, limit: int | None = None) -> list[Prompt]:
    """The first ``limit`` prompts of a split, from ``prompts.parquet`` or the folder it lies in."""
    import pyarrow.parquet as pq

    if split not in SPLITS:
        raise ValueError(f"split {split!r} is unknown. Splits: {', '.join(SPLITS)}.")
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: run the prompts stage first.")
    rows = pq.read_table(path, schema=_schema(), filters=[("split", "=", split)]).to_pylist()
    return [Prompt(**row) for row in rows[:limit]]


def _schema() -> Any:
    """A `Prompt` as a row. Made when asked for, as a process that decodes has no pyarrow."""
    import pyarrow as pa

    return pa.schema([*((name, pa.string()) for name in TEXTS), ("tokens", pa.list_(pa.int32()))])
