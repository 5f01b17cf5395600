"""Numbers of the report whose meaning is subtle: what is paired, what is left out, and what must not be divided by."""

import json

import pandas as pd
import pytest

from pipelines.measuring.names import CHOICES, PLAIN
from pipelines.measuring.tables import ORACLE, REPLAYED
from pipelines.outputs import read_json, write_json
from pipelines.report import fitted, latency, release
from pipelines.report import replayed as replay_section
from pipelines.report.inputs import Inputs, Measured, read_measured
from pipelines.report.speed import KINDS, of_kind
from tests.pipelines.hand_made_measured import (
    BRANCH_SPEED,
    MAIN_SPEED,
    STOP_SPEED,
    decodes,
    head_record,
    write_measured,
)
from tests.pipelines.hand_made_profile import PROFILE
from tests.pipelines.hand_made_release import choice, write_release
from tests.pipelines.hand_made_replay import write_replay

DEVICE = "toy-1c"


def inputs_of(folder, speed, change=lambda row: row, **options):
    rows = [change(row) for row in decodes(speed, noise=0.0, temperatures=(0.0,))]
    write_measured(folder / "measured" / DEVICE, rows, **options)
    return Inputs(folder, DEVICE)


def rows_of(made, table=0):
    """A table's rows by their first cell."""
    frame = made.tables[table].frame
    return frame.set_index(frame.columns[0]).to_dict("index")


def test_a_section_of_what_was_not_measured_is_left_out(tmp_path):
    nothing = inputs_of(tmp_path, {arm: rate for arm, rate in MAIN_SPEED.items() if arm != "entropy"})
    parts = (fitted.section, latency.section, release.release, replay_section.replay, replay_section.verifiers)
    assert [part(nothing) for part in parts] == [None] * 5
    assert [of_kind(kind, nothing) for kind in KINDS] == [None] * 3


def test_mean_accepted_length_counts_segments_not_rounds(tmp_path):
    """A round that hits goes on with its segment: over rounds the mean would be shorter."""
    hits = lambda row: row | ({"accepted": 30, "segments": 20, "hits": 10} if row["arm"] == "pearl-4" else {})  # noqa: E731
    measured = inputs_of(tmp_path, MAIN_SPEED | BRANCH_SPEED, hits).measured
    assert measured.metric("m_incl", "pearl-4") == pytest.approx(1 + 30 / 20)


def test_arms_that_validation_did_not_choose_and_bypassed_ones_stand_for_nothing(tmp_path):
    """pearl-2 is faster on these prompts than pearl-4, which was chosen before."""
    speed = MAIN_SPEED | BRANCH_SPEED | STOP_SPEED
    bypassed = lambda row: row | {"bypassed": 30} if row["arm"] == "early_stop-1" else row  # noqa: E731
    inputs = inputs_of(tmp_path, speed, bypassed)
    branches = of_kind("branches", inputs)
    assert "pearl-2" not in rows_of(branches) and "pearl-4" in rows_of(branches)
    assert "highest estimate: specbranch-8 at T=0, +50.0 %" in branches.finding
    assert "early_stop-1" not in rows_of(of_kind("stopping", inputs))


@pytest.mark.parametrize(
    ("rate", "said"), [(176, "chain: early_stop-1 at T=0; highest"), (158, "chain: none; highest")]
)
def test_a_rule_pays_whose_whole_interval_lies_above_the_chain(tmp_path, rate, said):
    made = of_kind("stopping", inputs_of(tmp_path, MAIN_SPEED | STOP_SPEED | {"early_stop-1": rate, "entropy": 158}))
    assert said in made.finding


def test_what_was_fitted_has_one_row_whatever_its_own_rule_is_called(tmp_path):
    gain = {"value": 0.1, "low": 0.05, "high": 0.2}
    source = {
        "kind": "takeover",
        "policies": {"source": {"gain": None}, "takeover": {"gain": gain}},
        "static_length": 2,
    }
    write_json(tmp_path / "fit" / "takeover.json", {"family": "source", "parts": {"T=0": source}})
    tree = {"selector": {"gain": gain}, "oracle": {"gain": gain}}
    write_json(tmp_path / "fit" / "delayed_tree-nss.json", {"family": "tree", "parts": {"T=0": tree}})
    write_json(tmp_path / "fit" / "hrad.json", head_record())
    write_json(tmp_path / "fit" / "lookahead.json", {"family": "guess", "rows": []})
    rows = fitted.section(Inputs(tmp_path, DEVICE)).tables[0].frame.to_dict("records")
    assert [(row["predictor"], row["its rule"]["value"]) for row in rows] == [
        *(("delayed_tree-nss", 0.1), ("hrad", 0.05), ("hrad", -0.04), ("takeover", 0.1))
    ]


def test_what_profile_and_decodes_do_not_share_is_named_with_both_values(tmp_path):
    write_measured(tmp_path, decodes(MAIN_SPEED))
    found = latency.mismatches(PROFILE["provenance"], read_measured(tmp_path).origin)
    assert found == {"target dtype": ("bfloat16", "float32"), "threads": (3, 1)}


# Replay


@pytest.fixture
def replayed(tmp_path):
    """The section of a replay whose rows ``change`` alters, by a clock with the ``timed`` rows."""

    def made(change=None, timed=lambda rows: rows.iloc[:0], **options):
        folder = tmp_path / "replay" / DEVICE
        write_replay(folder, **options)
        rows = pd.read_parquet(folder / REPLAYED)
        if change is not None:
            change(rows)
            rows.to_parquet(folder / REPLAYED)
        clocked = timed(rows.copy()).rename(columns={"drafter": "arm"}).assign(repeat=0)
        inputs = Inputs(tmp_path, DEVICE)
        vars(inputs)["measured"] = Measured(clocked, {"choices": []}, {})
        return replay_section.replay(inputs)

    return made


def chains(rows):
    return rows[rows["family"].isin([PLAIN, "chain"])]


def test_the_clock_says_what_choosing_by_replay_costs(replayed):
    def slower(rows):
        """On the clock chain-3 reaches 140 on test prompts, and chain-1 150."""
        rows.loc[(rows["drafter"] == "chain-3") & (rows["split"] == "test"), "seconds"] *= 160 / 140
        return chains(rows)

    (row,) = rows_of(replayed(timed=slower), 1).values()
    assert (row["replay's choice"], row["fastest"], row["policies"]) == ("chain-3", "chain-1", 2)
    assert row["regret"]["value"] == pytest.approx(140 / 150 - 1)
    assert (row["median error"], row["largest error"]) == pytest.approx(((160 / 140 - 1) / 2, 160 / 140 - 1))


def test_policies_are_compared_on_what_both_decoded(replayed):
    """Slow prompts went to one chain, fast ones to the other: what each did by itself would turn the order round."""

    def some(rows):
        rows.loc[rows["prompt"] == "p0", "seconds"] *= 50
        kept = ~((rows["drafter"] == "chain-3") & ~rows["prompt"].isin(["p0", "p1"]))
        both = chains(rows[kept & ~((rows["drafter"] == "chain-1") & (rows["prompt"] == "p0"))])
        sums = both[both["split"] == "test"].groupby("drafter")[["tokens", "seconds"]].sum()
        rates = sums["tokens"] / sums["seconds"]
        assert rates["chain-3"] < rates["chain-1"], "the wrong twin"
        return both

    (row,) = rows_of(replayed(timed=some), 1).values()
    assert row["replay's choice"] == row["fastest"] == "chain-3"
    assert (row["median error"], row["regret"]["value"]) == pytest.approx((0.0, 0.0))


def test_replay_that_is_far_off_the_clock_gets_no_figure(replayed):
    def plain_is_fast(rows):
        rows.loc[rows["drafter"] == PLAIN, "seconds"] /= 10
        return chains(rows)

    made = replayed(timed=plain_is_fast)
    assert rows_of(made, 1) == {"T=0": {"prompts": 6, "policies": 2}} and "do not belong together" in made.notes[-1]


def test_drift_is_of_plain_decoding_alone(replayed):
    def half_as_fast(rows):
        rows["seconds"] *= 2
        return chains(rows)

    (row,) = rows_of(replayed(timed=half_as_fast), 1).values()
    assert (row["drift"], row["largest error"]) == pytest.approx((1.0, 0.0))


def test_a_gap_that_is_not_surely_one_is_not_divided_by_and_an_oracle_below_the_chain_is_an_error(replayed):
    def oracle_at(rate):
        def change(rows):
            rows.loc[rows["drafter"] == ORACLE, "seconds"] *= 200 / rate

        return change

    assert rows_of(replayed(oracle_at(160)))["T=0, all (6)"].get("gap closed") is None
    with pytest.raises(ValueError, match=r"106 tokens/s, .* 106.7 \(chain-3\).*latency@"):
        replayed(oracle_at(159))


# Release


def test_a_winner_gains_nothing_over_itself_and_a_score_may_be_missing(tmp_path):
    def tuned(record):
        write_json(tmp_path / "tuning" / DEVICE / CHOICES, [record])
        return rows_of(release.release(Inputs(tmp_path, DEVICE)))["T=0"]

    static, plain, unscored = map(tuned, (choice("chain-2"), choice(PLAIN), choice() | {"gains": {}}))
    assert "over static chain" not in static and static["over plain"]["value"] == pytest.approx(2.0)
    assert "over plain" not in plain and plain["over static chain"]["value"] == pytest.approx(-0.5)
    assert not {"over plain", "over static chain"} & set(unscored) and unscored["prompts"] == 0


def decided(folder, record):
    write_json(folder / "tuning" / DEVICE / CHOICES, [record])
    return release.decision(Inputs(folder, DEVICE))


def test_the_decision_shows_the_trial_s_gain_where_there_was_one(tmp_path):
    """Over the gate's reference; else tuning's over the static chain."""
    assert ": +10.0 % " in decided(tmp_path, choice())
    write_release(tmp_path / "tuning", tmp_path / "trials", DEVICE)
    assert ": +7.0 % " in decided(tmp_path, choice())


def test_what_is_not_surely_faster_than_plain_decoding_is_not_for_serving(tmp_path):
    """By tuning's prompts, or by the gate's where there was a trial."""

    def serves(low):
        scored["gains"][PLAIN]["gain"] = {"value": 0.02, "low": low, "high": 0.05}
        return "At T=0 serve" in decided(tmp_path, scored)

    scored = choice()
    assert [serves(low) for low in (0.01, 0.0, -0.3)] == [True, False, False]
    write_release(tmp_path / "tuning", tmp_path / "trials", DEVICE)
    assert serves(-0.3), "the gate found a gain"
    path = tmp_path / "trials" / "auto" / DEVICE / "verdict.json"
    record = read_json(path)
    record["evidence"]["gains"][PLAIN]["value"] = 0.0
    path.write_text(json.dumps(record))
    assert not serves(0.01)


def test_what_cannot_be_tried_has_a_verdict_without_gains(tmp_path):
    write_release(tmp_path / "tuning", tmp_path / "trials", DEVICE)
    path = tmp_path / "trials" / "auto" / DEVICE / "verdict.json"
    record = read_json(path)
    record["evidence"] |= {"gains": {}, "settings": {}, "reference": None}
    write_json(path, record)
    rows = rows_of(release.release(Inputs(tmp_path, DEVICE)), 1)
    assert rows["auto"]["verdict"] == "passed" and pd.isna(rows["auto"]["gain"]) and len(rows) == 3
