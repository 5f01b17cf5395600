"""Values as people read them, tables as Markdown, checks as rows."""

import pytest

from pipelines.reporting.page import markdown, markdown_table
from pipelines.reporting.section import OVER_CHAIN, Check, Section, Table
from pipelines.reporting.text import FINE, GAIN, MS, NUMBER, SHARE, TIMES, TINY, UNDEFINED, WHOLE, listed, shown


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ({"value": -0.021, "low": -0.05, "high": 0.01}, GAIN, "−2.1 % (−5.0…+1.0)"),
        ({"value": 0.12, "low": 0.08, "high": 0.15}, SHARE, "12 % (8–15)"),
        ({"value": 1620.4, "low": 1550.0, "high": 1700.0}, WHOLE, "1620 (1550–1700)"),
        ({"value": 0.0016, "low": None, "high": None}, MS, "1.60"),
        ({"value": 0.01, "low": 0.00003, "high": 1.5}, MS, "10.0 (0.0300–1500)"),
        ({"value": 0.6251, "low": 0.6, "high": 0.65}, FINE, "0.625 (0.600–0.650)"),
        (UNDEFINED, TIMES, "–"),
        (1.6e-5, TINY, "1.6e−05"),
        (7, NUMBER, "7.00"),
        (False, TIMES, "no"),
        ("chain-4", NUMBER, "chain-4"),
    ],
)
def test_values_in_words(value, unit, expected):
    assert shown(value, unit) == expected


def test_lists_in_a_sentence():
    assert [listed(names) for names in ((), ("a",), ("a", "b"))] == ["none", "a", "a and b"]


def test_tables_as_markdown():
    table = Table(
        [{"arm": "a", OVER_CHAIN: 0.1, "share": 0.5}, {"arm": "b", "share": "yes"}], "caption", frozenset("b"), SHARE
    )
    assert markdown_table(table).split("\n") == [
        "| arm | gain over best static chain | share |",
        "| --- | --- | --- |",
        "| a | +10.0 % | 50 % |",
        "| **b** | **–** | **yes** |",
    ]
    section = Section("name", "Title", "Finding.", (table, Table([])), notes=("Note.",))
    assert markdown(section, 3).split("\n\n")[:4] == ["### Title", "Finding.", "Note.", "#### caption"]
    assert section.record()["tables"] == [
        {
            "caption": "caption",
            "columns": ["arm", OVER_CHAIN, "share"],
            "rows": [{"arm": "a", OVER_CHAIN: 0.1, "share": 0.5}, {"arm": "b", OVER_CHAIN: None, "share": "yes"}],
        }
    ]


def met(check):
    return check.row()["met"], check.row()["surely"]


def test_checks():
    interval = {"value": 1.2, "low": 1.0, "high": 1.4}
    row = {"check": "speed", "bar": "at least 1.10x", "measured": "1.20x (1.00–1.40)", "met": True, "surely": False}
    assert Check("speed", interval, 1.1).row() == row
    assert met(Check("error", interval, 1.5, NUMBER, at_most=True)) == (True, True)
    alone = {"value": 1.2, "low": None, "high": None}
    assert met(Check("rank", alone, 1.3, NUMBER)) == (False, None)
