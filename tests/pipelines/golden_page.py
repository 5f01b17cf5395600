"""The values of one report, from hand-made data: what a rewrite of reporting has to reproduce.

    python -m tests.pipelines.golden_page

writes `golden_page.json` anew: for every section and table the rows with their values, one row a line. Look at the difference
before you commit it.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from pipelines.outputs import write_json
from pipelines.report.latency import measured_tables
from pipelines.stages import report
from predictors.latency.profile import LatencyProfile
from tests.pipelines.hand_made_measured import decodes, write_measured, write_records
from tests.pipelines.hand_made_profile import PROFILE
from tests.pipelines.hand_made_release import write_release
from tests.pipelines.hand_made_replay import write_replay

GOLDEN = Path(__file__).with_suffix(".json")
LEFT_OUT = ("origin",)  # texts about the measurement alone
DIGITS = 6


def write_data(folder: Path) -> None:
    """The data folder of pair p on device toy-1c, made by hand: every section has something to say."""
    write_json(folder / "device.json", {"slug": "toy-1c"})
    write_measured(folder / "measured" / "toy-1c", decodes())
    write_records(folder / "fit")
    write_json(folder / "pair" / "pair.json", {"pair": "p", "target": "t", "draft": "d"})
    write_replay(folder / "replay" / "toy-1c", cost_ratio=17.0)
    write_release(folder / "tuning", folder / "trials", "toy-1c")
    write_json(folder / "latency" / "toy-1c.json", PROFILE)


def write_page(data: Path, output: Path) -> Path:
    """Run stage ``report`` on a data folder; the folder it wrote."""
    report.run(SimpleNamespace(device=data / "device.json", data=data, output=output))
    return output / "toy-1c"


def values(page: Path) -> dict:
    """Section -> table -> rows, from a page's record."""
    record = json.loads((page / report.RECORD).read_text())
    return {
        section: {table["name"]: [*map(known, table["rows"])] for table in made["tables"]}
        for section, made in record["sections"].items()
        if section not in LEFT_OUT
    }


def golden(page: Path) -> dict:
    """All that the golden file pins: the page, and the tables of ``draftwright latency``."""
    tables = measured_tables(LatencyProfile.from_record(PROFILE, "profile"))
    shown = {table.name: [*map(known, table.record()["rows"])] for table in tables}
    made = values(page) | {"draftwright latency": shown}
    return json.loads(json.dumps(rounded(made)))


def known(row: dict) -> dict:
    """Its cells that have a value."""
    return {column: cell for column, cell in row.items() if cell is not None}


def rounded(value):
    """Numbers to `DIGITS` digits, intervals as [value, low, high]."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict) and value.keys() == {"value", "low", "high"}:
        return [rounded(value[end]) for end in ("value", "low", "high")]
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [*map(rounded, value)] if isinstance(value, list) else value


def lines(made: dict) -> Iterator[str]:
    """As JSON, one row a line."""
    text = json.dumps
    sections = [
        f"{text(section)}: {{\n"
        + ",\n".join(
            f"  {text(table, ensure_ascii=False)}: [\n"
            + ",\n".join(f"    {text(row, ensure_ascii=False)}" for row in rows)
            + "\n  ]"
            for table, rows in tables.items()
        )
        + "\n}"
        for section, tables in made.items()
    ]
    yield "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        GOLDEN.write_text("".join(lines(golden(write_page(Path(folder), Path(folder) / "reports")))))


if __name__ == "__main__":
    main()
