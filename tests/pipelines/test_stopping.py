"""From a pair to measured stop rules, on tiny models: token traces, stop models, bundles, timed decodes, report."""

import json
import warnings
from argparse import Namespace

import numpy as np
import pandas as pd
import pytest
import yaml

from pipelines import stopper, stopping, tokens
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.stopping.names import DECODING, DYNAMIC, EARLY_STOPS, STOPPERS
from pipelines.measuring.stopping.study import StoppingConfig, StoppingStudy
from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, write_prompts
from pipelines.reporting.stopping_folder import read_stopping
from pipelines.reporting.stopping_plots import calibration_by_place
from pipelines.reporting.stopping_report import StoppingReport, sentences
from predictors.bundle import read_bundle
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from tests.pipelines.toy_bench import toy_bench, toy_prompts
from tests.predictors.affine_profile import PROFILE

SMALL = {"epochs": 2, "batch_size": 64}
PARAMETERS = {
    "traces": {"tokens": {"gamma_max": 4, "every": 1, "max_new_tokens": 24, "top": 4, "threads": 1}},
    "stopper": {
        "train": {
            "early_stop-1": {"inputs": "before", "network": {"hidden_sizes": [8, 8]}, **SMALL},
            "early_stop-2": {"inputs": "law", "network": {"hidden_sizes": [8]}, "labels": "hard", **SMALL},
            "specdecpp": {"kind": "specdecpp", "inputs": "behind", "network": {"shape": "residual"}, **SMALL},
            "logistic": {"kind": "logistic", "inputs": "law", "labels": "hard", **SMALL},
        },
        "calibrate": {"bootstrap_replicates": 20},
    },
    "stopping": {
        "validation_prompts": 2,
        "test_prompts": 3,
        "gammas": [1, 3],
        "epsilons": [0.05],
        "forks": [[2, 1], [3, 2]],
        "all_on_forks": True,
        "max_new_tokens": 12,
        "threads": 1,
    },
}
COLUMNS = {"chain-1", "chain-3", "confidence-0.05", "entropy", "roc", "ema", *STOPPERS, "fork-2.1", "fork-3.2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which tokens, all stop models and their measurement were made."""
    place = tmp_path_factory.mktemp("stopping")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
        args = toy_bench(place, "unused", {})
        counts = (("train", 8), ("validation", 4), ("test", 4))
        write_prompts(place / "prompts" / FILE, [p for split, count in counts for p in toy_prompts(count, split)])
        (place / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS}}))
        write_json(place / "latency" / "toy-1c.json", PROFILE.to_record())
        args.out = args.tokens = place / "tokens"
        tokens.run(args)
        for name in STOPPERS:
            args.predictor, args.latency, args.positions = name, place / "latency", None
            args.record, args.bundle = place / "stoppers" / f"{name}.json", place / "bundles" / name
            stopper.run(args)
        args.bundles, args.output = place / "bundles", place / "stopping"
        stopping.run(args)
    return place


@pytest.fixture(scope="module")
def pair(folder):
    return ModelPair.load(target=str(folder / "pair" / "target"), draft=str(folder / "pair" / "draft"))


def test_bundles_decode(folder, pair):
    for name in STOPPERS:
        decoder = load_decoder(folder / "bundles" / name, pair)
        card = read_bundle(folder / "bundles" / name).card
        assert card["kind"] == decoder.controller.kind and card["selection"]["predictor"] == name
        rounds = decoder.generate(list(range(6)), max_new_tokens=12, temperature=1.0, randomness=Randomness(0)).rounds
        assert len(rounds) > 1 and not any(record.bypassed for record in rounds)
        assert max(record.levels for record in rounds) <= 4


def test_the_papers_threshold_replaces_the_exported_rule(folder, pair):
    levels = {}
    for threshold in (0.0001, 0.9999):
        controller = {"kind": "early_stop", "bundle": str(folder / "bundles/early_stop-2"), "threshold": threshold}
        config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}, "controller": controller}
        rounds = build_decoder(pair, config).generate(
            list(range(6)), max_new_tokens=24, temperature=1.0, randomness=Randomness(0)
        )
        levels[threshold] = {record.levels for record in rounds.rounds[1:-4]}
    assert levels == {0.0001: {4}, 0.9999: {2}}, "the token about to be drawn is kept, and one is always drafted"


def test_every_arm_is_timed_on_every_prompt(folder):
    table = pd.read_parquet(folder / "stopping" / "toy-1c" / DECODING)
    test, validation = (table[table["split"] == split] for split in ("test", "validation"))
    others = ("confidence-0.05", "entropy", "roc", "ema", *(f"{name}, chains' rule" for name in STOPPERS))
    dynamic = {f"fork-3.2 {name}" for name in (*EARLY_STOPS, *others)}
    asked = {f"{name}, asked anyway" for name in STOPPERS}  # of those that calibration left unasked
    assert set(test["drafter"]) - asked == COLUMNS | dynamic | {"autoregressive"}
    assert set(test[test["family"] == DYNAMIC]["drafter"]) == dynamic
    assert set(validation["drafter"]) == {"chain-1", "chain-3", "confidence-0.05", "fork-2.1", "fork-3.2"}
    assert set(test.groupby(["drafter", "setting"])["prompt"].nunique()) == {3}
    greedy = test[test["setting"] == "T=0"]
    assert set(greedy.groupby("prompt")["tokens"].nunique()) == {1}, "greedy output is the target's, whatever the rule"


def test_the_report_reads_what_the_stages_left(folder):
    results = read_stopping(folder / "stopping" / "toy-1c", folder / "stoppers")
    report = StoppingReport(results, replicates=20, seed=0)
    quality, timing = report.quality(), report.timing()
    assert [model["model"] for model in quality["models"]] == list(STOPPERS)
    assert [row["setting"] for row in timing["settings"]] == ["T=0", "T=1"]
    for row in timing["settings"]:
        arms = {arm["arm"]: arm for arm in row["arms"]}
        assert {row["best"]["chain"], row["best"]["fork"], "roc", "fork-3.2 early_stop-1"} <= set(arms)
        assert arms[row["best"]["chain"]]["gain"] == {"value": 0.0, "low": 0.0, "high": 0.0}
        assert arms["autoregressive"]["speedup"]["value"] == 1 and arms["roc"]["gain_over_fork"] is None
    assert len(sentences(quality, timing)) == 3
    shuffled = [{**model, "tokens": dict(reversed(model["tokens"].items()))} for model in quality["models"]]
    alive, calibrated, _ = calibration_by_place({"models": shuffled}).axes
    assert all((np.diff(line.get_xdata()) > 0).all() for line in calibrated.lines)
    assert [line.get_label() for line in alive.lines] == ["observed", *STOPPERS]
    for line, model in zip(calibrated.lines, quality["models"], strict=True):
        for place, error in zip(line.get_xdata(), line.get_ydata(), strict=True):
            assert error == model["tokens"][str(place - 1)]["ece"], "first place is the first drafted token"
    assert read_stopping(folder / "nowhere", folder / "stoppers") is None


def test_an_interrupted_measurement_goes_on(folder, pair, tmp_path):
    config = StoppingConfig(
        **{**PARAMETERS["stopping"], "gammas": (1, 3), "epsilons": (0.05,), "forks": ((2, 1),), "temperatures": (1.0,)}
    )
    bundles = {"early_stop-2": folder / "bundles" / "early_stop-2"}
    prompts = {split: toy_prompts(4, split) for split in ("validation", "test")}

    def rows():
        return StoppingStudy(pair, config, bundles, prompts, MeasurementLog(tmp_path / "log.jsonl", "f")).run()

    whole = rows()
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    (tmp_path / "log.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])
    assert [row["tokens"] for row in rows()] == [row["tokens"] for row in whole]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"forks": [[2]]}, r"a fork is a width and a depth, got \[2\]"),
        ({"gammas": []}, "must name at least one each"),
        ({"test_prompts": 0}, "test_prompts must be >= 1, got 0"),
    ],
)
def test_bad_parameters(tmp_path, wrong, message):
    args = toy_bench(tmp_path, "stopping", wrong)
    args.bundles = tmp_path / "bundles"
    with pytest.raises(ValueError, match=message):
        stopping.run(args)


def test_a_stage_needs_stop_models(tmp_path):
    args = toy_bench(tmp_path, "stopping", {})
    args.bundles = tmp_path / "bundles"
    with pytest.raises(ValueError, match="no stop model under"):
        stopping.run(Namespace(**vars(args)))


def test_records_are_functions_of_their_inputs(folder):
    record = json.loads((folder / "stoppers" / "specdecpp.json").read_text())
    assert set(record["parts"]) == {"T=0", "T=1"} and record["tokens"]["all"]["tokens"] > 50
    assert set(record["parts"]["T=1"]["policies"]) == {
        *("static", "confidence", "paper", "model", "asked", "asked for nothing", "perfect")
    }
    assert len(record["product_bias"]["predicted"]) == 4
