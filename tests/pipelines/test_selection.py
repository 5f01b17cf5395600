"""From a pair to a measured selector, on tiny models: root traces, selectors, bundles, timed decodes, checks of labels."""

import json
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import yaml

from pipelines import roots, selection, selector
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.selection.names import DECODING, PRICES, ROUNDS, SELECTOR, STATIC
from pipelines.measuring.selection.study import SelectionConfig, SelectionStudy
from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, write_prompts
from pipelines.reporting.selection_folder import read_selection
from pipelines.reporting.selection_report import SelectionReport
from predictors.actions import Action
from predictors.bundle import read_bundle
from predictors.latency import LatencyProfile, LatencyTable
from predictors.training.root_table import RootTable
from runtime import ModelPair, Randomness, load_decoder
from tests.pipelines.toy_bench import toy_bench, toy_prompts
from tests.predictors.affine_profile import PROFILE, SERVING

RULES = ("specinfer", "block")
ACTIONS = {"chains": [1, 3], "k": [2], "l1": [0, 1], "l2": [1]}
PARAMETERS = {
    "traces": {
        "roots": {
            "settings": [{"temperature": 1.0}],
            "actions": ACTIONS,
            "rules": list(RULES),
            "spacing": 4,
            "roots_per_prompt": 3,
            "prompts": [8, 4, 4],
            "threads": 1,
        }
    },
    "selector": {
        "train": {
            "candidates": [{"states": True}, {"objective": "throughput"}],
            "width": 4,
            "hidden_sizes": [8, 8],
            "epochs": 3,
            "batch_size": 16,
        },
        "calibrate": {"bootstrap_replicates": 20},
    },
    "selection": {
        "test_prompts": 2,
        "action_prompts": 1,
        "checked_prompts": 4,
        "checked_rounds": 40,
        "checked_rules": ["specinfer"],
        "checked_actions": [{"k": 1, "l1": 3, "l2": 0}, {"k": 2, "l1": 1, "l2": 1}],
        "max_new_tokens": 8,
        "threads": 1,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which roots, both selectors and their measurement were made."""
    place = tmp_path_factory.mktemp("selection")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
        args = toy_bench(place, "unused", {})
        prompts = [
            p for split, count in (("train", 8), ("validation", 4), ("test", 4)) for p in toy_prompts(count, split)
        ]
        write_prompts(place / "prompts" / FILE, prompts)
        (place / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS}}))
        flat = np.array([0.5, 0.5])
        priced = {**PROFILE.tables, "verification_specinfer": LatencyTable({"drafted": (0, 16)}, flat, flat, flat, 1)}
        write_json(place / "latency" / "toy-1c.json", LatencyProfile(priced, "p", {}, {}, serving=SERVING).to_record())
        args.out = args.roots = place / "roots"
        roots.run(args)
        for rule in RULES:
            args.rule, args.latency = rule, place / "latency"
            args.record, args.bundle = place / "selectors" / f"{rule}.json", place / "bundles" / f"delayed_tree-{rule}"
            selector.run(args)
        args.bundles, args.output = place / "bundles", place / "selection"
        selection.run(args)
    return place


@pytest.fixture(scope="module")
def pair(folder):
    return ModelPair.load(target=str(folder / "pair" / "target"), draft=str(folder / "pair" / "draft"))


def test_bundles_decode(folder, pair):
    for rule in RULES:
        decoder = load_decoder(folder / "bundles" / f"delayed_tree-{rule}", pair)
        card = read_bundle(folder / "bundles" / f"delayed_tree-{rule}").card
        assert card["serving"] == SERVING.to_record()
        assert decoder.verifier.name == rule and card["selection"]["predictor"] == f"delayed_tree-{rule}"
        assert (
            card["prices"]["profile_hash"]
            == json.loads((folder / "selectors" / f"{rule}.json").read_text())["profile_hash"]
        )
        rounds = decoder.generate(list(range(5)), max_new_tokens=12, temperature=1.0, randomness=Randomness(0)).rounds
        assert len(rounds) > 1 and not any(record.bypassed for record in rounds)
    assert all(action.is_chain for action in decoder.controller.actions), "block verification takes chains"


def test_records_say_what_a_selector_is_worth(folder):
    record = json.loads((folder / "selectors" / "specinfer.json").read_text())
    assert set(record["parts"]) == {"all", "T=1"} and set(record["uses"]) == {"code", "prose"}
    assert len(record["history"]) <= 3 and record["roots"] == 12 and record["documents"] == 2
    assert "oracle" in record["parts"]["all"]
    assert set(record["candidates"]) == {"tokens-states", "throughput-scalars"}
    gains = {name: one["validation_gain"] for name, one in record["candidates"].items()}
    assert gains[record["candidate"]] == max(gains.values())


def test_every_arm_is_timed_on_every_prompt(folder):
    table = pd.read_parquet(folder / "selection" / "toy-1c" / DECODING)
    counts = table.groupby(["family", "verifier"])["prompt"].nunique().to_dict()
    assert counts[STATIC, "specinfer"] == counts[SELECTOR, "block"] == counts["autoregressive", "autoregressive"] == 2
    actions = table[table["family"] == "action"]
    assert set(actions["drafter"]) == {"chain-1", "chain-3", "delayed-2.0.1", "delayed-2.1.1"}
    assert actions["prompt"].nunique() == 1 and (table["seconds_rounds"] < table["seconds"]).all()
    assert set(json.loads((folder / "selection" / "toy-1c" / PRICES).read_text())) == set(RULES)


def test_real_rounds_begin_where_labels_were_made(folder):
    """Many first rounds at every root agree with the labels on average."""
    rounds = pd.read_parquet(folder / "selection" / "toy-1c" / ROUNDS)
    labels = RootTable.read(folder / "roots").rows("test")
    assert len(rounds) == len(labels) * 2
    found = rounds.groupby("action")[["emitted", "expected"]].mean()
    assert (found["emitted"] - found["expected"]).abs().max() < 0.25
    assert (rounds["emitted"].between(1, 4)).all()


def test_the_report_reads_what_the_stages_left(folder):
    results = read_selection(folder / "selection" / "toy-1c", folder / "selectors")
    report = SelectionReport(results, replicates=20, seed=0)
    assert [row["rule"] for row in report.quality()["rules"]] == list(RULES)
    timing = report.timing()
    assert timing["against_traversal"] is None and len(timing["actions"]) == 4


def test_an_interrupted_measurement_goes_on(folder, pair, tmp_path):
    config = SelectionConfig(**{**PARAMETERS["selection"], "checked_actions": (Action(1, 3, 0),), "checked_rounds": 1})
    bundles = {rule: folder / "bundles" / f"delayed_tree-{rule}" for rule in RULES}
    table, log = RootTable.read(folder / "roots"), MeasurementLog(tmp_path / "log.jsonl", "f")

    def study(log):
        return SelectionStudy(pair, config, table, bundles, toy_prompts(4), log)

    whole = study(log).run()
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    (tmp_path / "log.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])
    resumed = study(MeasurementLog(tmp_path / "log.jsonl", "f")).run()
    assert [row["tokens"] for row in resumed[DECODING]] == [row["tokens"] for row in whole[DECODING]]
    assert resumed[ROUNDS] == whole[ROUNDS]


def test_what_was_not_traced_cannot_be_checked(folder, pair, tmp_path):
    config = SelectionConfig(**{**PARAMETERS["selection"], "checked_actions": (Action(4, 4, 4),), "checked_rounds": 1})
    bundles = {"specinfer": folder / "bundles" / "delayed_tree-specinfer"}
    log = MeasurementLog(tmp_path / "log.jsonl", "f")
    study = SelectionStudy(pair, config, RootTable.read(folder / "roots"), bundles, toy_prompts(4), log)
    with pytest.raises(ValueError, match="no root trace tells of delayed-4.4.4 under specinfer"):
        study.run()


def test_stages_need_what_they_build_on(folder, tmp_path):
    args = toy_bench(tmp_path, "selection", {})
    args.roots, args.bundles = folder / "roots", tmp_path / "bundles"
    with pytest.raises(ValueError, match="no selector under"):
        selection.run(args)
    shutil.copytree(folder / "roots", tmp_path / "roots")
    (tmp_path / "roots" / "manifest.json").unlink()
    args.roots = tmp_path / "roots"
    with pytest.raises(ValueError, match="collection did not finish"):
        selection.run(args)
