"""What would be released, in the report: what tuning says of its winners."""

import pytest

from pipelines.reporting.release_report import ReleaseReport
from tests.pipelines.hand_made_release import choice


def tuned(record):
    return ReleaseReport([record], {}).timing()["tuned"][0]


def test_the_winner_is_shown_over_plain_decoding_and_the_static_chain():
    row = tuned(choice())
    assert row["speedup"] == pytest.approx({"value": 2.2, "low": 2.15, "high": 2.25})
    assert row["gain"] == pytest.approx({"value": 0.1, "low": 0.05, "high": 0.15})
    assert (row["predicted"], row["validation"]) == (pytest.approx(3.4), pytest.approx(2.2))
    assert (row["prompts"], row["candidates"]) == (9, 3)


def test_a_static_winner_gains_nothing_over_itself():
    row = tuned(choice("chain-2"))
    assert row["gain"] is None and row["speedup"]["value"] == pytest.approx(2.0)


def test_plain_decoding_may_win_and_a_score_may_be_missing():
    row = tuned(choice("autoregressive"))
    assert row["speedup"] is None and row["gain"]["value"] == pytest.approx(-0.5)
    unscored = tuned(choice() | {"score": None})
    assert (unscored["speedup"], unscored["gain"], unscored["scored"]) == (None, None, False)
    assert len(ReleaseReport.sentences({}, {"tuned": [row, unscored], "verdicts": []})) == 2
