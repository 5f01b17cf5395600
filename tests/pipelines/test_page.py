"""Values as people read them, tables as Markdown, checks as rows."""

import pytest

from pipelines.reporting.page import markdown, markdown_table
from pipelines.reporting.section import Check, Column, Section, Table
from pipelines.reporting.text import GAIN, MS, NUMBER, SHARE, TIMES, TINY, UNDEFINED, WHOLE, listed, shown


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ({"value": -0.021, "low": -0.05, "high": 0.01}, GAIN, "−2.1 % (−5.0…+1.0)"),
        ({"value": 0.12, "low": 0.08, "high": 0.15}, SHARE, "12 % (8–15)"),
        ({"value": 1620.4, "low": 1550.0, "high": 1700.0}, WHOLE, "1620 (1550–1700)"),
        ({"value": 0.0016, "low": None, "high": None}, MS, "1.60"),
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
    table = Table((Column("arm"), Column("gain", GAIN)), (("a", 0.1), ("b", None)), "caption", frozenset({1}))
    assert markdown_table(table).split("\n") == [
        "caption",
        "",
        "| arm | gain |",
        "| --- | --- |",
        "| a | +10.0 % |",
        "| **b** | **–** |",
    ]
    section = Section("name", "Title", "Finding.", (table,), notes=("Note.",))
    assert markdown(section, 3).split("\n\n")[:3] == ["### Title", "Finding.", "Note."]
    assert section.record()["tables"] == [
        {
            "caption": "caption",
            "columns": ["arm", "gain"],
            "rows": [{"arm": "a", "gain": 0.1}, {"arm": "b", "gain": None}],
        }
    ]


def test_checks():
    interval = {"value": 1.2, "low": 1.0, "high": 1.4}
    assert Check("speed", interval, 1.1).row() == ("speed", "at least 1.10x", "1.20x (1.00–1.40)", True, False)
    assert Check("error", interval, 1.5, NUMBER, at_most=True).row()[3:] == (True, True)
    alone = {"value": 1.2, "low": None, "high": None}
    assert Check("rank", alone, 1.3, NUMBER).row()[3:] == (False, None)
