"""Numbers of the report whose meaning is subtle: what is paired, what is left out, and what must not be divided by."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from pipelines.measuring.names import CHOICES, PLAIN
from pipelines.measuring.tables import ORACLE, REPLAYED
from pipelines.outputs import read_json, write_json
from pipelines.report import branches, heads, latency, plots, release, self_drafting, stopping
from pipelines.report import replayed as replay_section
from pipelines.report.inputs import Inputs, Measured, read_measured
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import AcceptanceStatistics, generation_latency
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


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Pictures take longer than numbers."""
    monkeypatch.setattr(plots, "draw", lambda *arguments, **options: None)


def inputs_of(folder, speed, change=lambda row: row, **options):
    rows = [change(row) for row in decodes(speed, noise=0.0, temperatures=(0.0,))]
    write_measured(folder / "measured" / DEVICE, rows, **options)
    return Inputs(folder, DEVICE)


def rows_of(made, table=0):
    """A table's rows by their first cell."""
    shown = made.record()["tables"][table]
    return {row[shown["columns"][0]]: row for row in shown["rows"]}


@pytest.mark.parametrize("one", [branches, heads, latency, release, replay_section, self_drafting, stopping])
def test_a_section_of_what_was_not_measured_is_left_out(tmp_path, one):
    speed = {arm: rate for arm, rate in MAIN_SPEED.items() if arm != "entropy"}
    assert one.section(inputs_of(tmp_path, speed)) is None


def test_a_branch_method_without_a_choice_of_validation_is_refused(tmp_path):
    unchosen = inputs_of(tmp_path, MAIN_SPEED | BRANCH_SPEED | {"specbranch-no-hrad-6": 210})
    with pytest.raises(ValueError, match="specbranch-no-hrad at T=0"):
        branches.section(unchosen)


def test_mean_accepted_length_counts_segments_not_rounds(tmp_path):
    """A round that hits goes on with its segment: over rounds the mean would be shorter."""
    hits = lambda row: row | ({"accepted": 30, "segments": 20, "hits": 10} if row["arm"] == "pearl-4" else {})  # noqa: E731
    measured = inputs_of(tmp_path, MAIN_SPEED | BRANCH_SPEED, hits).measured
    assert measured.metric("m_incl", "pearl-4") == pytest.approx(1 + 30 / 20)


def test_a_rule_pays_that_surely_beats_the_chosen_chain_and_the_one_fastest_here(tmp_path):
    speed = MAIN_SPEED | STOP_SPEED | {"early_stop-1": 176, "entropy": 158}

    def paid(name, **changes):
        made = stopping.section(inputs_of(tmp_path / name, speed | changes.pop("speed", {}), **changes))
        _, sure = stopping.paying(made.tables[:1], {"early_stop-1", "entropy (AdaEDL)", "roc"})
        return {rule: gain["value"] for rule, gain in sure.items()}, rows_of(made)

    found, rows = paid("usual")
    assert found == pytest.approx({"early_stop-1 at T=0": 0.1}) and rows["roc"]["gain over best static fork"] is None
    found, rows = paid("hindsight", speed={"chain-1": 200})
    assert found == {} and rows["early_stop-1"]["gain over fastest chain here"]["value"] == pytest.approx(0.88 - 1)
    bypassed = lambda row: row | {"bypassed": 30} if row["arm"] == "early_stop-1" else row  # noqa: E731
    found, rows = paid("bypassed", change=bypassed)
    assert found == {} and "early_stop-1" not in rows


def test_an_unknown_interval_leaves_the_value(tmp_path):
    record = head_record("classes")
    record["parts"]["T=0"]["metrics"]["head"] |= {"macro_auc_interval": {"value": 0.7, "low": None, "high": None}}
    write_json(tmp_path / "fit" / "hrad.json", record)
    assert heads.section(Inputs(tmp_path, DEVICE)).record()["tables"][0]["rows"][0]["macro AUC"] == 0.7


# Latency


@pytest.fixture(scope="module")
def profile():
    return LatencyProfile.from_record(PROFILE, "profile")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    write_measured(folder, decodes(MAIN_SPEED))
    return read_measured(folder)


def test_requests_of_different_length_are_predicted_each_by_itself(measured, profile):
    runs = measured.decodes.copy()
    runs.loc[runs["prompt"] == "p0", ["prompt_tokens", "tokens"]] = 100, 8
    plain = latency.predictions(dataclasses.replace(measured, decodes=runs), profile).iloc[0]
    seconds = sum(
        count * tokens / np.array(generation_latency(profile, [1.0], 0, prompt, tokens, sampled=False).speeds(tokens))
        for count, prompt, tokens in ((5, 20, 60), (1, 100, 8))
    )
    assert [plain[end] for end in latency.ENDS] == pytest.approx((5 * 60 + 8) / seconds)


def test_rounds_that_the_budget_cut_do_not_count(measured):
    """A run whose longest round was cut says nothing about longer drafts."""
    runs = measured.decodes.copy()
    cut = (runs["arm"] == "chain-3") & (runs["prompt"] == "p1")
    runs["uncut_histogram"] = [
        np.array([5, 0]) if at else own for at, own in zip(cut, runs["uncut_histogram"], strict=True)
    ]
    made = latency.acceptance(dataclasses.replace(measured, decodes=runs), "T=0", ["chain-1", "chain-3"])
    assert made.rate == pytest.approx(AcceptanceStatistics([[54, 48], [45, 40, 35, 20]]).rate)


def test_predictions_far_off_the_clock_are_not_shown(measured, tmp_path):
    ends = ("low", "median", "high")
    tables = {
        name: table | {end: (1e-3 * np.array(table[end])).tolist() for end in ends}
        for name, table in PROFILE["tables"].items()
    }
    write_json(tmp_path / "latency" / f"{DEVICE}.json", {**PROFILE, "tables": tables})
    inputs = Inputs(tmp_path, DEVICE)
    vars(inputs)["measured"] = measured
    assert len(latency.section(inputs).tables) == 1


def test_what_profile_and_decodes_do_not_share_is_named_with_both_values(measured):
    found = latency.mismatches(PROFILE["provenance"], measured.origin)
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
        vars(inputs)["measured"] = Measured(clocked, {"choices": []}, pd.DataFrame(), {})
        return replay_section.section(inputs)

    return made


def chains(rows):
    return rows[rows["family"].isin([PLAIN, "chain"])]


def test_the_clock_says_what_choosing_by_replay_costs(replayed):
    def slower(rows):
        """On the clock chain-3 reaches 140 on test prompts, and chain-1 150."""
        rows.loc[(rows["drafter"] == "chain-3") & (rows["split"] == "test"), "seconds"] *= 160 / 140
        return chains(rows)

    (row,) = replayed(timed=slower).record()["tables"][1]["rows"]
    assert (row["replay's choice"], row["fastest"], row["policies"]) == ("chain, γ=3", "chain, γ=1", 2)
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

    (row,) = replayed(timed=some).record()["tables"][1]["rows"]
    assert row["replay's choice"] == row["fastest"] == "chain, γ=3"
    assert (row["median error"], row["regret"]["value"]) == pytest.approx((0.0, 0.0))


def test_replay_that_is_far_off_the_clock_gets_no_figure(replayed):
    def plain_is_fast(rows):
        rows.loc[rows["drafter"] == PLAIN, "seconds"] /= 10
        return chains(rows)

    (row,) = replayed(timed=plain_is_fast).record()["tables"][1]["rows"]
    assert row["policies"] == 2 and row["median error"] is row["regret"] is row["fastest"] is None


def test_a_gap_that_is_not_surely_one_is_not_divided_by_and_an_oracle_below_the_chain_is_an_error(replayed):
    def oracle_at(rate):
        def change(rows):
            rows.loc[rows["drafter"] == ORACLE, "seconds"] *= 200 / rate

        return change

    assert rows_of(replayed(oracle_at(160)))["T=0, all (6)"]["gap closed"]["value"] is None
    with pytest.raises(ValueError, match=r"106 tokens/s, .* 106.7 \(chain-3\).*latency@"):
        replayed(oracle_at(159))


# Release


def tuned(folder, record):
    write_json(folder / "tuning" / DEVICE / CHOICES, [record])
    ((row,),) = (table["rows"] for table in release.section(Inputs(folder, DEVICE)).record()["tables"])
    return row


def test_a_winner_gains_nothing_over_itself_and_a_score_may_be_missing(tmp_path):
    static, plain, unscored = (
        tuned(tmp_path, record) for record in (choice("chain-2"), choice(PLAIN), choice() | {"gains": {}})
    )
    assert static["over static chain"] is None and static["over plain"]["value"] == pytest.approx(2.0)
    assert plain["over plain"] is None and plain["over static chain"]["value"] == pytest.approx(-0.5)
    assert (unscored["over plain"], unscored["over static chain"], unscored["prompts"]) == (None, None, 0)


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
    row, *others = release.section(Inputs(tmp_path, DEVICE)).record()["tables"][1]["rows"]
    assert (row["bundle"], row["over"], row["gain"]) == ("auto", None, None) and len(others) == 6
