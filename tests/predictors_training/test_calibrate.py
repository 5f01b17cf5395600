"""Stage ``calibrate``: natural shares, held-out rows, and every policy next to the baselines."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.head_folder import read_head
from pipelines.outputs import write_json
from predictors.latency import LatencyProfile, draft_cost, round_costs
from predictors.training.calibrate import CalibrateConfig, calibrate, outputs
from predictors.training.decision import Costs, Replay
from predictors.training.label_table import read_labels
from predictors.training.labels import LabelConfig, write_labels
from predictors.training.metrics import nll
from predictors.training.trace_table import TraceTable
from tests.pipelines.hand_made_profile import PROFILE
from tests.predictors_training.synthetic import (
    GAMMA_MAX,
    PREDICTORS,
    STATE,
    stage,
    synthetic_columns,
    write_parameters,
    write_traces,
)

POLICIES = {
    "head",
    "majority",
    "previous_label",
    "draft_confidence",
    "confidence",
    "head_argmax",
    "best_static",
    "oracle",
}


@pytest.fixture(scope="module")
def records(finished):
    return {name: json.loads((finished / f"data/p/calibration/{name}.json").read_text()) for name in PREDICTORS}


@pytest.fixture
def copied(finished, workspace):
    shutil.copytree(finished / "data", workspace / "data")
    return workspace


def run_calibrate(*options):
    labels, head = "data/p/labels/hrad.parquet", "data/p/predictors/paper"
    stage("calibrate", "--predictor", "paper", labels, head, "data/p/calibration/paper.json", *options)


def test_the_same_inputs_give_the_same_bytes(copied):
    path = Path("data/p/calibration/paper.json")
    before = path.read_bytes()
    run_calibrate()
    assert path.read_bytes() == before


def test_the_record_stands_the_head_beside_its_baselines(records):
    for record in records.values():
        test = record["test"]
        assert set(test["metrics"]) == {"head", "head_uncalibrated", "majority", "previous_label", "draft_confidence"}
        assert set(test["decision"]) == set(test["gain_over_best_static"]) == POLICIES
        assert record["rows"] == {"train": 960, "validation": 336, "test": 336}
        for entry in [*test["decision"].values(), *test["gain_over_best_static"].values()]:
            assert entry["low"] <= entry["value"] <= entry["high"]
        for metrics in test["metrics"].values():
            assert np.sum(metrics["confusion"]) == 336 == sum(row["rows"] for row in metrics["reliability"])
        assert test["metrics"]["majority"]["macro_auc"] == 0.5
        assert test["metrics"]["head"]["macro_auc"] > 0.65
        values = {name: entry["value"] for name, entry in test["decision"].items()}
        assert max(values.values()) == values["oracle"] and test["gain_over_best_static"]["best_static"]["value"] == 0
        assert values["best_static"] == test["static_values"][record["thresholds"]["static_gamma"]]
        assert values["confidence"] != values["head"]


def test_all_heads_are_compared_in_the_accepted_length(finished, records):
    """How often exactly the accepted tokens are submitted, on the same rows for every head and policy."""
    test = read_labels(finished / "data/p/labels/hrad.parquet").rows("test")
    accepted = np.minimum(test.accepted, 4)
    for record in records.values():
        decision = record["test"]["decision"]
        assert decision["oracle"]["length_accuracy"] == 1
        static = record["thresholds"]["static_gamma"]
        assert decision["best_static"]["length_accuracy"] == pytest.approx((accepted == static).mean())
        assert decision["confidence"] == records["paper"]["test"]["decision"]["confidence"]


def test_the_length_record_speaks_of_tokens(records):
    record = records["length"]
    assert record["target"] == "length" and record["classes"] == ["0", "1", "2", "3", "4"]
    assert len(record["calibration"]["bias"]) == 5
    metrics, decision = record["test"]["metrics"], record["test"]["decision"]
    head = metrics["head"]
    confusion = np.array(head["confusion"])
    distance = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    assert head["accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())
    assert head["mean_absolute_error"] == pytest.approx((confusion * distance).sum() / confusion.sum())
    assert head["mean_absolute_error"] < metrics["majority"]["mean_absolute_error"]
    assert decision["head_argmax"]["length_accuracy"] == pytest.approx(head["accuracy"])
    assert "mean_absolute_error" not in records["paper"]["test"]["metrics"]["head"]


def test_the_length_rule_is_chosen_on_validation_rows(records):
    """Of two, the one worth more there; at this cost a draft is cheap, and the likeliest length too timid."""
    record = records["length"]
    assert (
        record["thresholds"]["rule"] == record["rules"]["head"]["draft"] == {"choice": "expectation", "draft_cost": 0.2}
    )
    values = record["validation"]["decision"]
    assert values["head"] > values["head_argmax"]


def test_calibration_does_not_raise_the_validation_loss(finished, records):
    table = read_labels(finished / "data/p/labels/hrad.parquet").rows("validation")
    head = read_head(finished / "data/p/predictors/paper")
    logits = outputs(head.network, head.spec, table)[0]
    assert records["paper"]["validation"]["metrics"]["nll"] < nll(torch.softmax(logits, dim=1).numpy(), table.label)


def test_the_trusted_distance_covers_validation_rows(finished, records):
    table = read_labels(finished / "data/p/labels/hrad.parquet").rows("validation")
    head = read_head(finished / "data/p/predictors/paper")
    distance = outputs(head.network, head.spec, table)[1]
    limit = records["paper"]["thresholds"]["max_distance"]
    assert distance.max() < limit == pytest.approx(2 * np.quantile(distance, 0.999))


def test_test_rows_decide_nothing(finished, records):
    """Calibration, thresholds and the static setting stay the same when the test rows are spoiled."""
    table = read_labels(finished / "data/p/labels/hrad.parquet")
    spoiled = table.take(np.arange(len(table)))
    for column in (spoiled.state_NS, spoiled.confidence_NG, spoiled.accepted):
        column.flags.writeable = True
    rows = table.split == "test"
    spoiled.state_NS[rows], spoiled.confidence_NG[rows], spoiled.accepted[rows] = 9, 0.5, 0
    head, record = read_head(finished / "data/p/predictors/paper"), records["paper"]
    shares = head.facts["class_shares"]
    config = CalibrateConfig(
        draft_cost=0.2, epsilons=(0.0, 0.3, 0.5, 0.7), probabilities=(0.5, 0.7), bootstrap_replicates=2
    )
    made = calibrate(head.network, head.spec, shares["training"], shares["natural"], spoiled, config, Costs(0.2)).record
    for name in ("calibration", "thresholds", "rules", "confidence_epsilon", "validation"):
        assert json.loads(json.dumps(made[name])) == record[name], name
    assert made["test"]["decision"]["head"]["value"] != record["test"]["decision"]["head"]["value"]


def test_the_static_setting_is_the_best_on_train_and_validation_rows(finished, records):
    table = read_labels(finished / "data/p/labels/hrad.parquet")
    known = table.take(np.flatnonzero(table.split != "test"))
    replay = Replay(known.accepted, known.confidence_NG, known.survived, Costs(0.2))
    values = [replay.value(replay.static(tokens)) for tokens in range(5)]
    assert records["paper"]["thresholds"]["static_gamma"] == int(np.argmax(values))


def test_the_draft_cost_is_the_latency_profiles(copied):
    write_parameters({"calibrate": {"draft_cost": None}})
    with pytest.raises(SystemExit, match="draft_cost is not set: give --device and --latency"):
        run_calibrate()
    write_json(Path("device.json"), {"slug": "toy-1c"})
    write_json(Path("latency/toy-1c.json"), PROFILE)
    run_calibrate("--device", "device.json", "--latency", "latency")
    metadata = read_labels(Path("data/p/labels/hrad.parquet")).metadata
    served = metadata.capture_contract("labels").serving_range
    context = (served.min_context + served.max_context) / 2
    profile = LatencyProfile.from_record(PROFILE, "profile")
    expected = draft_cost(profile, metadata.gamma, context, sampled=False)
    record = json.loads(Path("data/p/calibration/paper.json").read_text())
    assert record["draft_cost"] == pytest.approx(expected) and expected != 0.2
    assert record["serving"] == PROFILE["serving"]
    write_parameters({"calibrate": {"decoding": "branches", "draft_cost": None, "branch_hit": 0.7}})
    run_calibrate("--device", "device.json", "--latency", "latency")
    measured = profile.table("target").axes["context"]
    contexts = [place for place in measured if served.min_context <= place <= served.max_context]
    draft, passes, decision = round_costs(profile, metadata.gamma, contexts or [context], STATE, sampled=False)
    record = json.loads(Path("data/p/calibration/paper.json").read_text())
    single = {"draft": pytest.approx(draft), "hit": 0.7, "decision": pytest.approx(decision)}
    assert record["costs"] | {"passes": None} == {"passes": None, **single}
    assert record["costs"]["passes"] == sorted(record["costs"]["passes"])
    assert sum(record["costs"]["passes"]) == pytest.approx(sum(passes)) and passes[0] == pytest.approx(1)
    write_parameters({"calibrate": {"decoding": "branches", "draft_cost": None}})
    with pytest.raises(SystemExit, match="no label row follows a branch.*or set branch_hit"):
        run_calibrate("--device", "device.json", "--latency", "latency")


def branch_labels(folder):
    """Labels of chains, then of branches: of ten rows four follow a hit and one a miss, and those after a hit are doubtful to the
    draft but always accepted."""
    chains, branches = synthetic_columns(), synthetic_columns(seed=1)
    place = np.arange(len(branches["position"])) % 10
    hits = place < 4
    branches["newest_token_source"] = np.select([hits, place == 4], ["branch", "bonus"], "correction")
    branches["accepted"] = np.where(hits, GAMMA_MAX, branches["accepted"])
    branches["confidence"][hits] = 0.1
    sets = [TraceTable(write_traces(folder / name, columns)) for name, columns in (("c", chains), ("b", branches))]
    write_labels(sets, LabelConfig(GAMMA_MAX), folder / "hrad.parquet")
    return read_labels(folder / "hrad.parquet")


def test_what_is_retained_is_decided_on_its_own_rows(tmp_path, finished):
    table = branch_labels(tmp_path)
    assert table.branch_hit == pytest.approx(0.8, rel=1e-2)  # the chains' bonus rows follow no branch point
    head = read_head(finished / "data/p/predictors/extended")
    shares = head.facts["class_shares"]

    def thresholds(table, decoding):
        config = CalibrateConfig(decoding=decoding, draft_cost=0.2, epsilons=(0.0, 0.3), bootstrap_replicates=2)
        return calibrate(head.network, head.spec, shares["training"], shares["natural"], table, config, Costs(0.2))

    made, known = thresholds(table, "branches"), table.take(np.flatnonzero(table.split != "test"))
    assert made.record["costs"] == {"draft": 0.2, "passes": (), "hit": known.branch_hit, "decision": 0.0}
    assert made.record["confidence_epsilon"] == {"draft": 0.3, "retention": 0.0}
    assert (made.thresholds.retained_gamma, made.thresholds.retention.epsilon) == (GAMMA_MAX, 0.0)
    assert made.thresholds.static_gamma < GAMMA_MAX
    chain = thresholds(table, "chain")
    alone = thresholds(table.take(np.flatnonzero(table.trace_set == 0)), "chain")
    assert chain.thresholds == alone.thresholds and chain.thresholds.retention is None
    assert (
        chain.record["rows"] == alone.record["rows"]
        and sum(alone.record["rows"].values()) == (table.trace_set == 0).sum()
    )
    met = (table.trace_set == 1) | (
        table.newest_token_source != "bonus"
    )  # behind a whole block a chain drafts, branches have
    assert sum(made.record["rows"].values()) == met.sum() < len(table)
    with pytest.raises(ValueError, match="every trace set is of branches"):
        thresholds(table.take(np.flatnonzero(table.trace_set == 1)), "chain")


def test_another_label_table_is_refused(copied, traces):
    write_parameters({"labels": {"gamma": 3}})
    stage("labels", traces, "data/p/labels")
    with pytest.raises(SystemExit, match="trained on another label table"):
        run_calibrate()


@pytest.mark.parametrize(
    "section, message",
    [
        ({"draft_cost": 0.1, "epsilons": []}, "epsilons must be one or more numbers"),
        ({"draft_cost": -1}, "draft_cost must be >= 0"),
        ({"draft_cost": 0.1, "decoding": "trees"}, "decoding must be chain or branches, got 'trees'"),
        ({"draft_cost": 0.1, "branch_hit": 0.5}, "only branches have one"),
        ({"draft_cost": 0.1, "draftcost": 1}, "Did you mean 'draft_cost'"),
    ],
)
def test_bad_settings_are_refused(workspace, section, message):
    write_parameters({"calibrate": section})
    with pytest.raises(SystemExit, match=message):
        run_calibrate()
