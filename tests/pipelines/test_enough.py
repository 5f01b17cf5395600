"""How many traces are enough: subsets by document, the rule on hand-made curves, the stages on synthetic traces."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from predictors.training.fit import TrainConfig

from pipelines.parameters import load_parameters
from pipelines.studies import enough_report, layers, learning_curves
from pipelines.studies.enough.fits import ASKED, BRIER, GAIN, MACRO_AUC, Fit, Replicates, Sampled, measured
from pipelines.studies.enough.heads import HeadLearner, with_layers
from pipelines.studies.enough.recommendation import Seeds, cheapest, enough, loss
from pipelines.studies.enough.subsets import kept_rows, training_documents
from pipelines.studies.enough.summary import learning_curves as curves_of
from pipelines.studies.enough.tables import verdict
from predictors.training.calibrate import CalibrateConfig
from predictors.training.decision import Costs
from predictors.training.labels import LabelConfig
from tests.predictors.affine_profile import PROFILE
from tests.predictors_training.synthetic import EMBEDDING, FAST, HIDDEN, LAYERS, PARAMETERS, make_labels
from tests.predictors_training.synthetic_roots import write_roots
from tests.predictors_training.synthetic_tokens import write_tokens
from trace_collection.collect import TraceConfig
from trace_collection.roots import RootTraceConfig
from trace_collection.tokens import TokenTraceConfig

ROOT = Path(__file__).parents[2]
SHARES, SEEDS, DRAWS = (0.25, 0.5, 1.0), 3, 200
STOPPER = {"kind": "early_stop", "network": {"hidden_sizes": [8]}, "epochs": 3}
MAIN = PARAMETERS | {
    "calibrate": {"chain": PARAMETERS["calibrate"]},
    "stopper": {"train": {"state": STOPPER, "law": STOPPER | {"inputs": "law"}}},
    "selector": {
        "train": {"width": 4, "hidden_sizes": [8, 4], "epochs": 3},
        "calibrate": {"bootstrap_replicates": 50},
    },
    "traces": {"rounds": {"every": 2}, "tokens": {"every": 4}, "roots": {"prompts": [15, 5, 5]}},
}
CHOSEN = {"heads": ["extended"], "stop_models": ["law", "state"], "rules": ["block"], "seeds": 2}
STUDY = {
    "traces": {"rounds": {"every": 1}, "tokens": {"every": 2}, "roots": {"prompts": [60, 20, 30]}},
    "learning_curves": CHOSEN | {"shares": [0.5, 1.0], "bootstrap_replicates": 20},
    "layers": CHOSEN | {"seeds": 1, "bootstrap_replicates": 20},
    "enough_report": {"seed": 0},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_labels(tmp_path_factory.mktemp("labels"))


def test_smaller_sets_are_whole_documents_within_larger_ones(table):
    document, split = table.document, table.split
    for seed in range(3):
        drawn = [set(training_documents(document, split, share, seed)) for share in (0.1, 0.25, 0.5, 1.0)]
        assert drawn[0] < drawn[1] < drawn[2] < drawn[3] and [len(names) for names in drawn] == [4, 10, 20, 40]
        kept = kept_rows(document, split, np.array(sorted(drawn[1])))
        assert set(document[kept & (split == "train")]) == drawn[1]
        assert set(document[~kept]) == drawn[3] - drawn[1], "a document is kept whole or not at all"
    first, second = (training_documents(document, split, 0.5, seed) for seed in (0, 1))
    assert set(first) != set(second)
    with pytest.raises(ValueError, match="share of documents"):
        training_documents(document, split, 0.0, 0)


def test_nothing_but_training_documents_is_ever_left_out_or_learnt_from(table):
    held_out = set(table.document[table.split != "train"])
    documents = training_documents(table.document, table.split, 0.25, seed=0)
    assert not held_out & set(documents)
    kept = kept_rows(table.document, table.split, documents)
    assert kept[table.split != "train"].all()


def seeds(values, noise=0.0, rng=None):
    """A metric by seed whose replicates scatter by ``noise`` with the documents."""
    rng = rng or np.random.default_rng(1)
    values = np.array(values)
    return Seeds(values, values[:, None] + noise * rng.normal(size=DRAWS))


def losses_of(means, metric=MACRO_AUC, spread=0.002):
    rng = np.random.default_rng(0)
    made = [seeds(mean + spread * rng.normal(size=4), noise=0.05) for mean in means]
    return [{metric: loss(one, made[-1], metric, seed=0)} for one in made]


def test_a_saturated_curve_needs_less_than_all_and_a_rising_one_does_not():
    assert enough(losses_of([0.60, 0.70, 0.75, 0.75])) == 2
    assert enough(losses_of([0.60, 0.65, 0.70, 0.75])) == 3
    assert enough(losses_of([0.75, 0.75, 0.75, 0.75])) == 0
    assert enough(losses_of([0.40, 0.30, 0.25, 0.25], BRIER)) == 2, "of errors less is better"


def test_a_share_is_not_enough_where_a_larger_one_is_surely_worse():
    assert enough(losses_of([0.75, 0.60, 0.75, 0.75])) == 2


def test_documents_that_are_hard_for_all_do_not_blur_a_difference():
    """Replicates are paired: unpaired, noise of 0.05 would hide a loss of 0.02."""
    whole, less = seeds([0.75] * 4, noise=0.05), seeds([0.73] * 4, noise=0.05)
    assert loss(less, whole, MACRO_AUC, seed=0)["low"] == pytest.approx(0.02)
    unpaired = seeds([0.73] * 4, noise=0.05, rng=np.random.default_rng(2))
    assert loss(unpaired, whole, MACRO_AUC, seed=0)["low"] < 0


def test_seeds_that_disagree_widen_the_interval():
    whole = seeds([0.75] * 4)
    steady, wild = seeds([0.74] * 4), seeds([0.64, 0.80, 0.72, 0.80])
    assert loss(steady, whole, MACRO_AUC, seed=0)["low"] > 0
    assert loss(wild, whole, MACRO_AUC, seed=0)["low"] < 0 < loss(wild, whole, MACRO_AUC, seed=0)["high"]


def test_the_cheapest_that_is_not_surely_worse():
    worse, equal, better = ({"low": low, "value": low + 0.01, "high": 0.1} for low in (0.01, -0.01, -0.05))
    points = [
        {"bytes": 1, "losses": {MACRO_AUC: equal, BRIER: worse}},
        {"bytes": 2, "losses": {MACRO_AUC: equal}},
        {"bytes": 2, "losses": {MACRO_AUC: better}},
        {"bytes": 4, "losses": {MACRO_AUC: {"low": 0.0, "value": 0.0, "high": 0.0}}},
    ]
    assert cheapest(points) == 2
    assert cheapest([points[0], points[3]]) == 1


def fits_of(means):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "controller": "paper",
            "variant": f"{share:g}",
            "seed": seed,
            "metric": MACRO_AUC,
            "documents": round(40 * share),
            "rows": round(960 * share),
            "value": value,
            "replicates": [value] * DRAWS,
        }
        for seed in range(SEEDS)
        for share, mean in zip(SHARES, means, strict=True)
        for value in [mean + 0.001 * rng.normal()]
    )


def test_what_is_collected_is_judged_by_the_curve():
    saturated, rising = (curves_of(fits_of(means), seed=0)["paper"] for means in ([0.6, 0.7, 0.7], [0.6, 0.65, 0.7]))
    assert saturated["points"][saturated["enough"]]["share"] == 0.5
    assert verdict(saturated, 0.5) == "enough" and verdict(saturated, 0.25) == "too few for macro AUC"
    assert rising["points"][rising["enough"]]["share"] == 1.0 and verdict(rising, 0.5) == "too few for macro AUC"
    assert rising["points"][1]["surely_worse"] == [MACRO_AUC]
    assert [point["rows"] for point in rising["points"]] == [240, 480, 960]


def test_fewer_layers_are_the_same_columns(table):
    size = len(LAYERS) * HIDDEN
    last = with_layers(table, LAYERS[-1:])
    assert np.array_equal(last.state_NS, table.state_NS[:, HIDDEN:])
    assert last.metadata.feature_spec("paper").state_size == HIDDEN + EMBEDDING
    assert np.array_equal(with_layers(table, ()).state_NS, table.state_NS[:, size:])
    assert with_layers(table, (), embedding=False).state_NS.shape == (len(table), 0)
    assert np.array_equal(with_layers(table, LAYERS).state_NS, table.state_NS)
    assert last.features(last.metadata.feature_spec("extended")).shape[1] == HIDDEN + EMBEDDING + 6


def test_a_head_measures_what_its_features_tell(table):
    config = TrainConfig("extended", reduced_size=4, **{**FAST, "hidden_sizes": (16, 8)})
    calibration = CalibrateConfig(**{**PARAMETERS["calibrate"], "epsilons": (0.0, 0.5), "probabilities": (0.5,)})
    learner = HeadLearner("extended", table, config, calibration, Costs(0.2), Replicates(30, 0))
    variants = learner.variants()
    assert list(variants) == ["scalars alone", "embedding", "layer 2", "last layer", "last 2 layers"]
    sizes = [learner.stored_bytes(variant) for variant in variants.values()]
    assert sizes == [24, 24 + 2 * EMBEDDING, *[24 + 2 * (HIDDEN + EMBEDDING)] * 2, 24 + 2 * (2 * HIDDEN + EMBEDDING)]
    documents = training_documents(table.document, table.split, 1.0, 0)
    areas = {name: learner.measure(documents, 0, variants[name])[MACRO_AUC] for name in ("embedding", "layer 2")}
    assert areas["layer 2"].value > areas["embedding"].value + 0.05, "the signal lies in the first layer's columns"
    assert len(areas["layer 2"].replicates) == 30


def test_a_rule_that_may_stay_silent_is_told_from_one_that_asks(table):
    """Where a decision costs more than drafting, calibration leaves the head unasked, and only the asking rule pays for it."""
    config = TrainConfig("extended", reduced_size=4, **{**FAST, "hidden_sizes": (16, 8)})
    calibration = CalibrateConfig(**{**PARAMETERS["calibrate"], "epsilons": (0.0, 0.5), "probabilities": (0.5,)})
    learner = HeadLearner("extended", table, config, calibration, Costs(0.2, decision=5.0), Replicates(10, 0))
    made = learner.measure(training_documents(table.document, table.split, 1.0, 0), 0)
    assert made[GAIN].value > -0.05 and made[ASKED].value < -0.5
    free = replace(learner, costs=Costs(0.2)).measure(training_documents(table.document, table.split, 1.0, 0), 0)
    assert free[ASKED].value == pytest.approx(free[GAIN].value, abs=0.05) and free[GAIN].value > made[GAIN].value


def test_finished_fits_are_not_trained_again(tmp_path):
    from pipelines.measuring.measurement_log import MeasurementLog

    trained = []

    def measure():
        trained.append(1)
        return {MACRO_AUC: Sampled(0.5, np.array([0.4, 0.6]))}

    fit = Fit("paper", "1", 0, {"rows": 3}, measure)
    first = measured([fit], MeasurementLog(tmp_path / "log", "f"))
    assert measured([fit], MeasurementLog(tmp_path / "log", "f")) == first and len(trained) == 1
    measured([fit], MeasurementLog(tmp_path / "log", "other"))
    assert len(trained) == 2
    assert first[0]["replicates"] == [0.4, 0.6] and first[0]["rows"] == 3


def test_shares_ascend_to_all():
    with pytest.raises(ValueError, match="shares must ascend"):
        learning_curves.LearningCurveConfig((), (), (), shares=(0.5, 0.25, 1.0))
    with pytest.raises(ValueError, match="shares must ascend"):
        learning_curves.LearningCurveConfig((), (), (), shares=(0.5,))


@pytest.mark.parametrize(
    ("section", "kind", "sizes"),
    [
        ("traces.rounds", TraceConfig, ("every",)),
        ("traces.tokens", TokenTraceConfig, ("every",)),
        ("traces.roots", RootTraceConfig, ("prompts", "draws")),
        ("labels", LabelConfig, ()),
    ],
)
def test_the_study_collects_more_of_the_same(section, kind, sizes):
    main, study = (
        load_parameters(kind, "pystdlib", section, ROOT / path / "params.yaml") for path in ("", "pipelines/studies")
    )
    kept = {name: getattr(main, name) for name in (*sizes, *(("max_gigabytes",) if sizes else ()))}
    assert replace(study, **kept) == main
    assert all((getattr(study, name) < value) == (name == "every") for name, value in kept.items() if name in sizes)


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["study", "--pair", "p", "--params", "study.yaml", *arguments])
    module.main()


def test_the_stages_on_synthetic_traces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": MAIN}}))
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"pairs": {"p": STUDY}}))
    device = {"slug": "toy", "cpu": "toy", "gpus": [], "bfloat16_flags": []}
    (tmp_path / "device.json").write_text(json.dumps(device))
    (tmp_path / "latency").mkdir()
    (tmp_path / "latency/toy.json").write_text(json.dumps(PROFILE.to_record()))
    make_labels(tmp_path / "labels")
    write_tokens(tmp_path / "tokens")
    write_roots(tmp_path / "roots")
    traces = ("device.json", "latency", "labels/hrad.parquet", "tokens", "roots")
    with pytest.raises(SystemExit, match="no finished study"):
        run(enough_report, monkeypatch, "device.json", "curves", "layers", "out")
    run(learning_curves, monkeypatch, *traces, "curves")
    run(layers, monkeypatch, *traces, "layers")
    run(enough_report, monkeypatch, "device.json", "curves", "layers", "out")
    summary = json.loads((tmp_path / "out/toy/enough.json").read_text())
    assert summary["present"] == {"extended": 0.5, "law": 0.5, "state": 0.5, "delayed_tree-block": 0.25}
    assert [point["documents"] for point in summary["curves"]["state"]["points"]] == [30, 60]
    assert set(summary["layers"]) == {"extended", "stop model", "delayed_tree-block"}
    whole = summary["curves"]["extended"]["points"][-1]
    assert whole["losses"][MACRO_AUC] == {"value": 0.0, "low": 0.0, "high": 0.0} and not whole["surely_worse"]
    text = (tmp_path / "out/toy/enough.md").read_text()
    assert "| delayed_tree-block |" in text and "## extended by features" in text and "| scalars alone | 24 |" in text
    assert (tmp_path / "out/toy/enough_curves.png").stat().st_size > 5000
    assert not list(tmp_path.glob("*/toy/fits.jsonl")), "a finished study leaves no log"
