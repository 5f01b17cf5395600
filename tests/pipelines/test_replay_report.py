"""What the report says of replayed policies of known speeds."""

from dataclasses import replace

import pandas as pd
import pytest

from pipelines.measuring.names import PLAIN
from pipelines.measuring.replay.names import ORACLE, REPLAYED
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.replay_report import ReplayReport, read_replay
from predictors.schema import EDIT
from tests.pipelines.hand_made_replay import write_replay


def on_clock(rows):
    """Decodes on the clock, from replayed ones."""
    return Measured(rows.rename(columns={"drafter": "arm"}).assign(repeat=0), pd.DataFrame(), {"choices": []}, {})


def test_the_report_says_what_known_speeds_mean(tmp_path):
    write_replay(tmp_path)
    measured = pd.read_parquet(tmp_path / REPLAYED).assign(seconds=lambda rows: rows["seconds"] * 2)
    slower = (measured["drafter"] == "chain-3") & (measured["split"] == "test")
    measured.loc[slower, "seconds"] *= 160 / 140  # on the clock it reaches 140, and chain-1 150
    results = read_replay(tmp_path, on_clock(measured[measured["family"].isin([PLAIN, "chain"])]))
    report = ReplayReport(results, replicates=100, seed=0)
    quality, timing = report.quality(), report.timing()
    (row,) = timing["settings"]
    assert (row["static"], row["ours"]) == ("chain-3", "entropy")
    whole = row["ladder"]["all"]
    assert whole["static"]["value"] == pytest.approx(1.6) and whole["oracle"]["value"] == pytest.approx(2.0)
    assert whole["gain"]["value"] == pytest.approx(0.05) and whole["room"]["value"] == pytest.approx(0.25)
    assert whole["closed"]["value"] == pytest.approx(0.2) and whole["closed"]["high"] == pytest.approx(0.2)
    assert set(row["ladder"]) == {"all", "code", "prose"} and quality == {"T=0": {"texts": 6, "documents": 3}}
    agreement = row["agreement"]
    assert (agreement["choice"], agreement["best"]) == ("chain-3", "chain-1")
    assert agreement["gain"]["value"] == pytest.approx(140 / 150 - 1)
    assert agreement["largest_error"] == pytest.approx(160 / 140 - 1)
    assert agreement["median_error"] == pytest.approx((160 / 140 - 1) / 2)
    first, second = report.sentences(quality, timing)
    assert (
        "chain-3 1.60x" in first
        and "20% of the gap" in first
        and "would have chosen chain-3, −7 % (−7…−7) against the fastest, chain-1" in second
    )
    assert read_replay(tmp_path / "nowhere", None) is None


def test_the_report_has_a_row_for_every_other_cost_ratio(tmp_path):
    write_replay(tmp_path, cost_ratio=17.0)
    (row,) = ReplayReport(read_replay(tmp_path, None), replicates=50, seed=0).timing()["settings"]
    (cheap,) = row["elsewhere"]
    assert row["cost_ratio"] == 6.5 and cheap["cost_ratio"] == 17.0
    assert (cheap["static"], cheap["ours"]) == ("chain-3", "confidence-0.4")
    assert cheap["ladder"]["all"]["gain"]["value"] == pytest.approx(164 / 160 - 1)
    assert row["ladder"]["all"]["gain"]["value"] == pytest.approx(168 / 160 - 1)


def test_edits_have_a_row_of_their_own_and_change_nothing_else(tmp_path):
    """Where they are pooled with the others, the choices and the ladder are other ones."""
    faster = {"chain-1": 9.0, "confidence-0.4": 9.0, ORACLE: 12.0}
    write_replay(tmp_path / "mix")
    write_replay(tmp_path / "both", edits=faster)

    def report(results):
        return ReplayReport(results, replicates=100, seed=0)

    measured = pd.read_parquet(tmp_path / "both" / REPLAYED)
    measured = on_clock(measured[measured["slice"] != EDIT])
    mix, both = (report(read_replay(tmp_path / name, measured)) for name in ("mix", "both"))
    assert both.quality() == mix.quality()
    (row,), (alone,) = both.timing()["settings"], mix.timing()["settings"]
    edits = row["ladder"].pop(EDIT)
    assert row == alone
    assert edits["texts"] == 6 and edits["static"]["value"] == pytest.approx(1.6)
    assert edits["oracle"]["value"] == pytest.approx(24.0)
    twin = read_replay(tmp_path / "both", measured)
    pooled = report(replace(twin, decoding=twin.decoding.replace({"slice": {EDIT: "code"}})))
    (row,) = pooled.timing()["settings"]
    assert (row["static"], row["ours"]) == ("chain-1", "confidence-0.4") != (alone["static"], alone["ours"])
    assert row["ladder"]["all"]["oracle"]["value"] != pytest.approx(2.0) and pooled.quality() != mix.quality()


def test_a_gap_that_is_not_surely_one_is_not_divided_by(tmp_path):
    write_replay(tmp_path)
    results = read_replay(tmp_path, None)
    level = results.decoding["drafter"] == ORACLE
    results.decoding.loc[level, "seconds"] *= 200 / 160
    (row,) = ReplayReport(results, replicates=50, seed=0).timing()["settings"]
    assert row["ladder"]["all"]["closed"] == {"value": None, "low": None, "high": None} and row["agreement"] is None


def test_an_oracle_below_the_static_chain_is_an_error_and_no_figure(tmp_path):
    write_replay(tmp_path)
    results = read_replay(tmp_path, None)
    oracle = results.decoding["drafter"] == ORACLE
    results.decoding.loc[oracle, "seconds"] *= 200 / 159  # a static chain is at 160 of these 200
    with pytest.raises(
        ValueError, match=r"T=0, all: .* 106 tokens/s, below the static chain's 106.7 \(chain-3\).*latency@"
    ):
        ReplayReport(results, replicates=50, seed=0).timing()


def test_replay_that_is_far_off_the_clock_is_called_that_and_given_no_figure(tmp_path):
    write_replay(tmp_path)
    measured = pd.read_parquet(tmp_path / REPLAYED).assign(repeat=0)
    measured.loc[measured["drafter"] == PLAIN, "seconds"] /= 10  # on the clock nothing speeds plain decoding up
    results = read_replay(tmp_path, on_clock(measured[measured["family"].isin([PLAIN, "chain"])]))
    report = ReplayReport(results, replicates=50, seed=0)
    quality, timing = report.quality(), report.timing()
    assert timing["settings"][0]["agreement"]["median_error"] > 5
    _, said = report.sentences(quality, timing)
    assert "do not belong together" in said and "latency@PAIR" in said and "900%" not in said


def test_policies_are_compared_on_what_both_decoded(tmp_path):
    """Slow prompts went to one chain, fast ones to the other: what each did by itself would turn the order round."""
    write_replay(tmp_path)
    whole = pd.read_parquet(tmp_path / REPLAYED).assign(repeat=0)
    whole.loc[whole["prompt"] == "p0", "seconds"] *= 50
    kept = ~((whole["drafter"] == "chain-3") & ~whole["prompt"].isin(["p0", "p1"]))
    kept &= ~((whole["drafter"] == "chain-1") & whole["prompt"].isin(["p0"]))
    measured = whole[kept & whole["family"].isin([PLAIN, "chain"])]
    report = ReplayReport(read_replay(tmp_path, on_clock(measured)), replicates=50, seed=0)
    (row,) = report.timing()["settings"]
    agreement = row["agreement"]
    assert (agreement["choice"], agreement["best"]) == ("chain-3", "chain-3")
    assert {one["policy"]: one["measured"] for one in agreement["policies"]} == {
        "chain-1": pytest.approx(1.5),
        "chain-3": pytest.approx(1.6),
    }
    sums = measured[measured["split"] == "test"].groupby("drafter")[["tokens", "seconds"]].sum()
    rates = sums["tokens"] / sums["seconds"]
    assert rates["chain-3"] < rates["chain-1"], "the wrong twin"
