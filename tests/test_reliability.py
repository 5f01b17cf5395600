"""Every test that the table of faults names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "docs/reliability.md").read_text()


def test_every_line_of_the_table_names_tests_that_exist():
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert named, f"no test is named: {row}"
        for file, name in named:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {name}"
