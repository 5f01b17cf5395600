"""What section ``replay`` says of policies of known speeds."""

import pandas as pd
import pytest

from pipelines.measuring.names import PLAIN
from pipelines.measuring.tables import ORACLE, REPLAYED
from pipelines.reporting.inputs import Inputs, Measured
from pipelines.reporting.replayed import oracle, section
from predictors.schema import EDIT
from tests.pipelines.hand_made_replay import write_replay


@pytest.fixture
def replayed(tmp_path):
    """The section of a replay whose rows ``change`` alters, by a clock with the ``measured`` rows; and its table by texts."""

    def made(change=None, measured=None, **options):
        folder = tmp_path / "replay" / "toy-1c"
        write_replay(folder, **options)
        rows = pd.read_parquet(folder / REPLAYED)
        if change is not None:
            change(rows)
            rows.to_parquet(folder / REPLAYED)
        timed = rows.iloc[:0] if measured is None else measured(rows.copy())
        inputs = Inputs(tmp_path, "toy-1c")
        decodes = timed.rename(columns={"drafter": "arm"}).assign(repeat=0)
        vars(inputs)["measured"] = Measured(decodes, {"choices": []}, pd.DataFrame(), {})
        return inputs, section(inputs)

    return made


def ladder(made):
    return {row["texts"]: row for row in made.record()["tables"][0]["rows"]}


def chains(rows):
    return rows[rows["family"].isin([PLAIN, "chain"])]


def test_the_ladder_says_what_known_speeds_mean(replayed):
    inputs, made = replayed()
    rows = ladder(made)
    assert set(rows) == {"T=0, all (6)", "T=0, code (3)", "T=0, prose (3)"}
    whole = rows["T=0, all (6)"]
    assert (whole["static chain"], whole["best rule"]) == ("chain, γ=3", "entropy (AdaEDL)")
    speeds = [whole[f"{name} over plain"] for name in ("static", "rule", "oracle")]
    assert speeds == pytest.approx([1.6, 1.68, 2.0])
    assert whole["rule over static"]["value"] == pytest.approx(0.05)
    assert whole["oracle over static"]["value"] == pytest.approx(0.25)
    assert whole["gap closed"] == pytest.approx({"value": 0.2, "low": 0.2, "high": 0.2})
    assert oracle(inputs) == pytest.approx({"T=0": 1.25})
    assert len(made.tables) == len(made.pictures) == 1, "nothing was timed"


def test_where_nothing_was_replayed_there_is_no_section(tmp_path):
    assert section(Inputs(tmp_path, "toy-1c")) is None and oracle(Inputs(tmp_path, "toy-1c")) == {}


def test_the_clock_says_what_choosing_by_replay_costs(replayed):
    def slower(rows):
        """On the clock chain-3 reaches 140 on test prompts, and chain-1 150."""
        rows.loc[(rows["drafter"] == "chain-3") & (rows["split"] == "test"), "seconds"] *= 160 / 140
        return chains(rows)

    _, made = replayed(measured=slower)
    (row,) = made.record()["tables"][1]["rows"]
    assert (row["sampling"], row["prompts"], row["policies"]) == ("T=0", 6, 2)
    assert (row["replay's choice"], row["fastest"]) == ("chain, γ=3", "chain, γ=1")
    assert row["regret"]["value"] == pytest.approx(140 / 150 - 1)
    assert (row["median error"], row["largest error"]) == pytest.approx(((160 / 140 - 1) / 2, 160 / 140 - 1))
    assert [picture.name for picture in made.pictures] == ["replay", "replay_clock"]


def test_policies_are_compared_on_what_both_decoded(replayed):
    """Slow prompts went to one chain, fast ones to the other: what each did by itself would turn the order round."""

    def some(rows):
        rows.loc[rows["prompt"] == "p0", "seconds"] *= 50
        kept = ~((rows["drafter"] == "chain-3") & ~rows["prompt"].isin(["p0", "p1"]))
        measured = chains(rows[kept & ~((rows["drafter"] == "chain-1") & (rows["prompt"] == "p0"))])
        sums = measured[measured["split"] == "test"].groupby("drafter")[["tokens", "seconds"]].sum()
        rates = sums["tokens"] / sums["seconds"]
        assert rates["chain-3"] < rates["chain-1"], "the wrong twin"
        return measured

    _, made = replayed(measured=some)
    (row,) = made.record()["tables"][1]["rows"]
    assert row["replay's choice"] == row["fastest"] == "chain, γ=3"
    assert (row["median error"], row["regret"]["value"]) == pytest.approx((0.0, 0.0))


def test_replay_that_is_far_off_the_clock_gets_no_figure(replayed):
    def plain_is_fast(rows):
        rows.loc[rows["drafter"] == PLAIN, "seconds"] /= 10
        return chains(rows)

    _, made = replayed(measured=plain_is_fast)
    (row,) = made.record()["tables"][1]["rows"]
    assert row["policies"] == 2 and row["median error"] is row["regret"] is row["fastest"] is None
    assert len(made.pictures) == 1


def test_another_cost_ratio_has_a_row_and_choices_of_its_own(replayed):
    rows = ladder(replayed(cost_ratio=17.0)[1])
    there = rows["T=0, c=17 (6)"]
    assert (there["static chain"], there["best rule"]) == ("chain, γ=3", "confidence ε=0.4")
    assert there["rule over static"]["value"] == pytest.approx(164 / 160 - 1)
    assert rows["T=0, all (6)"]["rule over static"]["value"] == pytest.approx(168 / 160 - 1)


def test_edits_have_a_row_of_their_own_and_change_nothing_else(replayed):
    """Where they are pooled with the others, the choices and the ladder are other ones."""
    faster = {"chain-1": 9.0, "confidence-0.4": 9.0, ORACLE: 12.0}
    alone, both = ladder(replayed()[1]), ladder(replayed(edits=faster)[1])
    edits = both.pop("T=0, edit (6)")
    assert both == alone
    assert (edits["static over plain"], edits["oracle over plain"]) == pytest.approx((1.6, 24.0))
    pooled = ladder(replayed(lambda rows: rows.replace({"slice": {EDIT: "code"}}, inplace=True), edits=faster)[1])
    assert pooled["T=0, all (12)"]["static chain"] == "chain, γ=1", "the wrong twin"


def test_a_gap_that_is_not_surely_one_is_not_divided_by(replayed):
    def level(rows):
        rows.loc[rows["drafter"] == ORACLE, "seconds"] *= 200 / 160

    assert ladder(replayed(level)[1])["T=0, all (6)"]["gap closed"]["value"] is None


def test_an_oracle_below_the_static_chain_is_an_error_and_no_figure(replayed):
    def below(rows):
        rows.loc[rows["drafter"] == ORACLE, "seconds"] *= 200 / 159

    with pytest.raises(ValueError, match=r"T=0, all: .* 106 tokens/s, .* 106.7 \(chain-3\).*latency@"):
        replayed(below)
