"""What section ``release`` says of winners of known speed and of three verdicts."""

import pytest

from pipelines.measuring.names import CHOICES
from pipelines.outputs import read_json, write_json
from pipelines.promotion.verdict import lines
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.release import decision, section
from tests.pipelines.hand_made_release import choice, write_release
from tests.pipelines.test_gate import GOOD

DEVICE = "toy-1c"


def tuned(folder, record):
    write_json(folder / "tuning" / DEVICE / CHOICES, [record])
    ((row,),) = (table["rows"] for table in section(Inputs(folder, DEVICE)).record()["tables"])
    return row


def test_the_winner_is_shown_over_plain_decoding_and_the_static_chain(tmp_path):
    row = tuned(tmp_path, choice())
    assert row["over plain"] == pytest.approx({"value": 2.2, "low": 2.15, "high": 2.25})
    assert row["over static chain"] == pytest.approx({"value": 0.1, "low": 0.05, "high": 0.15})
    assert (row["replay alone, validation"], row["with the clock, validation"]) == pytest.approx((3.4, 2.2))
    assert (row["winner"], row["static chain"], row["test prompts"], row["candidates"]) == ("ema", "chain, γ=2", 9, 3)


def test_a_static_winner_gains_nothing_over_itself(tmp_path):
    row = tuned(tmp_path, choice("chain-2"))
    assert row["over static chain"] is None and row["over plain"]["value"] == pytest.approx(2.0)


def test_plain_decoding_may_win_and_a_score_may_be_missing(tmp_path):
    row = tuned(tmp_path, choice("autoregressive"))
    assert "over plain" not in section(Inputs(tmp_path, DEVICE)).finding
    assert row["over plain"] is None and row["over static chain"]["value"] == pytest.approx(-0.5)
    unscored = tuned(tmp_path, choice() | {"score": None})
    assert (unscored["over plain"], unscored["over static chain"], unscored["test prompts"]) == (None, None, 0)


def test_verdicts_have_the_gain_over_the_closest_rival_and_over_the_reference_by_setting(tmp_path):
    write_release(tmp_path / "tuning", tmp_path / "trials", DEVICE)
    made = section(Inputs(tmp_path, DEVICE))
    rows = made.record()["tables"][1]["rows"]
    assert [row["bundle"] for row in rows] == ["auto"] * 3 + ["hrad"] * 3 + ["length"] * 3
    assert [row["verdict"] for row in rows[::3]] == ["passed", "refused", "inconclusive"]
    assert [row["over"] for row in rows[:3]] == ["chain, γ=4", "chain, γ=4, T=0", "chain, γ=4, T=1"]
    assert [row["gain"]["value"] for row in rows[:3]] == pytest.approx([0.06, 0.07, 0.05])
    assert [row["gain"]["value"] for row in rows[::3]] == pytest.approx([0.06, 0.0, 0.03])
    assert {row["estimator"] for row in rows} == {"clock"}
    verdict = read_json(tmp_path / "trials" / "hrad" / DEVICE / "verdict.json")
    assert " ".join(lines(verdict)) in " ".join(made.printed.split())


def test_the_decision_shows_what_rests_on_more_prompts(tmp_path):
    """The trial's gain over the gate's reference, or tuning's over the static chain."""
    write_release(tmp_path / "tuning", tmp_path / "trials", DEVICE)
    assert ": +7.0 % " in decision(Inputs(tmp_path, DEVICE)) and "chain, γ=4" in decision(Inputs(tmp_path, DEVICE))
    scored = choice()
    scored["score"]["chain-2"]["prompts"] = GOOD.settings["T=0"].prompts
    write_json(tmp_path / "tuning" / DEVICE / CHOICES, [scored])
    assert ": +10.0 % " in decision(Inputs(tmp_path, DEVICE)) and "chain, γ=2" in decision(Inputs(tmp_path, DEVICE))


def test_what_is_not_surely_faster_than_plain_decoding_is_not_for_serving(tmp_path):
    """By tuning's test prompts, or by the gate's, if there were more."""

    def said(low):
        scored["score"]["autoregressive"]["gain"] = {"value": 0.02, "low": low, "high": 0.05}
        write_json(tmp_path / "tuning" / DEVICE / CHOICES, [scored])
        return decision(Inputs(tmp_path, DEVICE))

    scored = choice()
    for low, serves in ((0.01, True), (0.0, False), (-0.3, False)):
        assert ("serve" in said(low)) is serves
        assert ("does not surely beat plain decoding: +2 %" in said(low).replace(".0 %", " %")) is not serves
    write_release(tmp_path / "tuning", tmp_path / "trials", DEVICE)
    assert GOOD.settings["T=0"].prompts > 9 and "serve" in said(-0.3), "the gate timed more, and it gains"
    path = tmp_path / "trials" / "auto" / DEVICE / "verdict.json"
    record = read_json(path)
    record["evidence"]["gains"]["autoregressive"]["value"] = 0.0
    write_json(path, record)
    assert "does not surely beat" in said(0.01)
    scored["score"] = None
    write_json(tmp_path / "tuning" / DEVICE / CHOICES, [scored])
    path.unlink()
    assert "serve" not in decision(Inputs(tmp_path, DEVICE))


def test_what_cannot_be_tried_has_a_verdict_without_gains(tmp_path):
    write_release(tmp_path / "tuning", tmp_path / "trials", DEVICE)
    path = tmp_path / "trials" / "auto" / DEVICE / "verdict.json"
    record = read_json(path)
    record["evidence"] |= {"gains": {}, "settings": {}, "reference": None}
    write_json(path, record)
    row, *others = section(Inputs(tmp_path, DEVICE)).record()["tables"][1]["rows"]
    assert (row["bundle"], row["over"], row["gain"]) == ("auto", None, None) and len(others) == 6


def test_where_nothing_was_tuned_or_tried_there_is_no_section(tmp_path):
    assert section(Inputs(tmp_path, DEVICE)) is None
