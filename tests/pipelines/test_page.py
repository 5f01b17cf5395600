"""Values as people read them, tables as Markdown."""

import pytest

from pipelines.report.comparison import OVER_CHAIN
from pipelines.report.section import UNDEFINED, Section, Table, Unit, frame, markdown, shown


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ({"value": -0.021, "low": -0.05, "high": 0.01}, Unit.GAIN, "−2.1 % (−5.0…+1.0)"),
        ({"value": -0.021, "low": -0.15, "high": 0.11}, Unit.GAIN, "−2 % (−15…+11)"),
        ({"value": 0.12, "low": 0.08, "high": 0.15}, Unit.SHARE, "12 % (8–15)"),
        ({"value": 0.01, "low": 0.00003, "high": 1.5}, Unit.MS, "10.0 (0.0300–1500)"),
        (UNDEFINED, Unit.TIMES, "–"),
        (False, Unit.TIMES, "no"),
        ("chain-4", Unit.NUMBER, "chain-4"),
    ],
)
def test_values_in_words(value, unit, expected):
    assert shown(value, unit) == expected


def test_tables_as_markdown():
    rows = [{"arm": "a", OVER_CHAIN: 0.1, "share": 0.5, "none": UNDEFINED}, {"arm": "b", "share": "yes"}]
    text = markdown(Section("s", "S", "Found.", [Table("t", frame(rows), marked="b", unit=Unit.SHARE)]))
    assert text.strip().split("\n")[-2:] == ["| a | +10.0 % | 50 % |", "| **b** | **–** | **yes** |"]
