"""Values as people read them, tables as Markdown, checks against their bars."""

import pytest

from pipelines.report.page import markdown_table
from pipelines.report.section import OVER_CHAIN, Check, Table
from pipelines.report.text import GAIN, MS, NUMBER, SHARE, TIMES, TINY, UNDEFINED, shown


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ({"value": -0.021, "low": -0.05, "high": 0.01}, GAIN, "−2.1 % (−5.0…+1.0)"),
        ({"value": 0.12, "low": 0.08, "high": 0.15}, SHARE, "12 % (8–15)"),
        ({"value": 0.01, "low": 0.00003, "high": 1.5}, MS, "10.0 (0.0300–1500)"),
        (UNDEFINED, TIMES, "–"),
        (1.6e-5, TINY, "1.6e−05"),
        (False, TIMES, "no"),
        ("chain-4", NUMBER, "chain-4"),
    ],
)
def test_values_in_words(value, unit, expected):
    assert shown(value, unit) == expected


def test_tables_as_markdown():
    rows = [{"arm": "a", OVER_CHAIN: 0.1, "share": 0.5}, {"arm": "b", "share": "yes"}]
    lines = markdown_table(Table(rows, marked=frozenset("b"), unit=SHARE)).split("\n")
    assert lines[2:] == ["| a | +10.0 % | 50 % |", "| **b** | **–** | **yes** |"]


@pytest.mark.parametrize(
    ("measured", "bar", "at_most", "met"),
    [
        ((1.2, 1.0, 1.4), 1.1, False, (True, False)),
        ((1.2, 1.0, 1.4), 1.5, True, (True, True)),
        ((1.2, None, None), 1.3, False, (False, None)),
    ],
)
def test_a_check_is_met_by_its_value_and_surely_by_its_interval(measured, bar, at_most, met):
    row = Check("x", dict(zip(("value", "low", "high"), measured, strict=True)), bar, NUMBER, at_most).row()
    assert (row["met"], row["surely"]) == met
