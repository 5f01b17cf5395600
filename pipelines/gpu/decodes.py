"""What was decoded on a device: below its folder a folder for each pair, in that a log for each part (`Bench.race`)."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.measuring.harness import apart
from pipelines.measuring.measurement_log import Rows, logged_rows


def read_rows(folder: Path, results: Mapping[str, Any]) -> Rows:
    """Rows of all parts, each with its ``pair``, its part in front of its block's name; those timed with other code, settings or
    weights than ``results`` are left out.

    Raises
    ------
    ValueError
        If parts of ``results`` have no rows.
    """
    rows: Rows = []
    for path in sorted(folder.glob("*/*.jsonl")):
        own = logged_rows(path, results["fingerprint"])
        rows += [{"pair": path.parent.name, **row, "block": f"{path.stem}/{row['block']}"} for row in own]
    timed = {(row["block"].split("/")[0], row["pair"]) for row in rows}
    for name in results["parts"]:
        if name.startswith(("plain/", "methods/")) and tuple(name.split("/")) not in timed:
            raise ValueError(f"{folder} holds no decodes of part {name}: keep it next to its JSON, or measure again.")
    return rows


def part_of(rows: Rows, part: str, pair: str | None = None) -> Rows:
    """Rows of a part, of all pairs or of one."""
    return [row for row in rows if row["block"].split("/")[0] == part and pair in (None, row["pair"])]


def write_tables(folder: Path, rows: Rows) -> None:
    """For each pair the tables that stage ``measure`` writes, where pyarrow is installed."""
    if find_spec("pyarrow") is None:
        return
    from pipelines.measuring.tables import write_timed

    for pair in dict.fromkeys(row["pair"] for row in rows):
        write_timed(folder / pair, pair, *apart([row for row in rows if row["pair"] == pair]))
