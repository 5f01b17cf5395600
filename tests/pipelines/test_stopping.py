"""From a pair to measured stop rules, on tiny models: texts, labels, stop models, bundles, timed decodes, pages."""

import json
import shutil
import warnings
from types import SimpleNamespace

import pytest
import yaml

from pipelines.measuring.names import CHAIN, DYNAMIC
from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, write_prompts
from pipelines.registry.tracking import Tracking
from pipelines.report import fitted, speed
from pipelines.report.comparison import OVER_CHAIN
from pipelines.report.inputs import Inputs
from pipelines.stages import fit, labels, measure, traces
from predictors.bundle import read_bundle
from runtime import Randomness, build_decoder, load_decoder
from tests.pipelines.hand_made_measured import STOPPERS
from tests.pipelines.toy_bench import toy_bench, toy_pair, toy_prompts
from tests.predictors.affine_profile import PROFILE

CHAINED = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}}
FORK = {"method": "speculative", "drafter": {"kind": "fork", "width": 3, "depth": 2}, "verifier": "traversal"}
PAPER = {"kind": "early_stop", "threshold": 0.4, "bundle": "{bundles}/{model}"}
ARMS = [
    {"name": "autoregressive", "family": "plain", "decoder": {"method": "autoregressive"}},
    {
        "name": "chain-{gamma}",
        "family": "chain",
        "choose": True,
        "each": {"gamma": [1, 3]},
        "decoder": CHAINED | {"drafter": {"kind": "chain", "gamma": "{gamma}"}},
    },
    {
        "name": "confidence-0.05",
        "family": "confidence",
        "choose": True,
        "decoder": CHAINED | {"controller": {"kind": "confidence", "epsilon": 0.05}},
    },
    {
        "name": "{rule}",
        "family": "rule",
        "each": {"rule": ["entropy", "roc", "ema"]},
        "decoder": CHAINED | {"controller": {"kind": "{rule}"}},
    },
    {"name": "{model}", "family": "rule", "each": {"model": list(STOPPERS)}, "bundle": "{model}"},
    {"name": "fork-3.2", "family": "fork", "choose": True, "decoder": FORK},
    {
        "name": "fork-3.2 {model}",
        "family": "dynamic fork",
        "each": {"model": ["early_stop-1", "early_stop-2"]},
        "decoder": FORK | {"controller": PAPER},
    },
]
SMALL = {"family": "stop", "epochs": 2, "batch_size": 64, "gamma": 4, "folds": 2}
TEXTS = {"gamma_max": 4, "prompts": [8, 4, 4], "max_new_tokens": 24, "top": 4, "layers": 1, "threads": 1}
PARAMETERS = {
    "machine": {"threads": 1},
    "traces": {"texts": TEXTS},
    "labels": {"tokens": {}},
    "fit": {
        "early_stop-1": {"inputs": "before", "network": {"hidden_sizes": [8, 8]}, **SMALL},
        "early_stop-2": {"inputs": "law", "network": {"hidden_sizes": [8]}, "labels": "hard", **SMALL},
        "specdecpp": {"kind": "specdecpp", "inputs": "behind", "network": {"shape": "residual"}, **SMALL},
        "logistic": {"kind": "logistic", "inputs": "law", "labels": "hard", **SMALL},
    },
    "measure": {
        "arms": ARMS,
        "validation_prompts": 2,
        "test_prompts": 3,
        "max_new_tokens": 12,
        "threads": 1,
        "exactness_prompts": 0,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, template_db):
    """A folder in which texts, labels, all stop models and their measurement were made."""
    place = tmp_path_factory.mktemp("stopping")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(template_db, place / 'mlflow.db')}")
        args = toy_bench(place, "unused", {})
        counts = (("train", 8), ("validation", 4), ("test", 4))
        write_prompts(place / "prompts" / FILE, [p for split, count in counts for p in toy_prompts(count, split)])
        (place / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS}}))
        write_json(place / "latency" / "toy-1c.json", PROFILE.to_record())
        args.of, args.out = "texts", place / "traces" / "texts"
        traces.run(args)
        args.kind, args.traces, args.report, args.output = "tokens", args.out, None, place / "labels" / "tokens.parquet"
        labels.run(args)
        args.traces, args.labels, args.latency = place / "traces", place / "labels", place / "latency"
        args.predictor, args.fit, args.bundles = STOPPERS, place / "fit", place / "bundles"
        fit.run(args)
        args.output = place / "measured"
        measure.run(args)
    return place


@pytest.fixture(scope="module")
def pair(folder):
    return toy_pair(folder)


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


def test_the_page_reads_what_was_measured(folder):
    inputs = Inputs(folder, "toy-1c")
    measured = inputs.measured
    greedy = measured.test[measured.test["temperature"] == 0]
    assert greedy["equals_plain"].all(), "greedy output is the target's, whatever the rule"
    asked = measured.test.groupby("family")["asked"].min()
    assert asked[DYNAMIC] > 0 == measured.test.groupby("family")["asked"].max()[CHAIN]
    for setting, table in zip(("T=0", "T=1"), speed.of_kind("stopping", inputs).tables, strict=False):
        shown = table.frame.set_index("arm")[OVER_CHAIN]
        plain_and_chains = {arm for arm, family in measured.families.items() if family in ("plain", CHAIN)}
        assert set(shown.index) == {"best static chain", *measured.families} - plain_and_chains, setting
        assert shown["best static chain"] is None, "of the best static chain itself"
    assert set(fitted.section(inputs).tables[0].frame["predictor"]) == set(STOPPERS)


def test_records_are_functions_of_their_inputs(folder):
    record = json.loads((folder / "fit" / "specdecpp.json").read_text())
    assert set(record["parts"]) == {"T=0", "T=1"} and record["tokens"]["all"]["tokens"] > 50
    assert set(record["parts"]["T=1"]["policies"]) == {
        *("static", "confidence", "paper", "model", "asked", "asked for nothing", "perfect")
    }
    assert len(record["product_bias"]["predicted"]) == 3, "the model speaks of a token once the next one is drafted"
    assert record["family"] == "stop" and record["lineage"]["traces_sha256"]


def test_two_workers_fit_the_same_bundles_and_records(folder, template_db, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(template_db, tmp_path / 'mlflow.db')}")
    names, places = ["early_stop-2", "logistic"], {"fit": tmp_path / "fit", "bundles": tmp_path / "bundles"}
    found = {name: folder / name for name in ("latency", "traces", "labels")} | {"device": folder / "device.json"}
    args = SimpleNamespace(pair="p", params=folder / "params.yaml", predictor=names, workers=2, **found, **places)
    fit.run(args)
    for name in names:
        for path in (f"fit/{name}.json", f"bundles/{name}/card.json", f"bundles/{name}/controller.safetensors"):
            assert (tmp_path / path).read_bytes() == (folder / path).read_bytes()
    tracking = Tracking("p")
    runs = tracking.client.search_runs([tracking.experiment_id])
    assert sorted(run.info.run_name for run in runs) == names and {run.info.status for run in runs} == {"FINISHED"}
