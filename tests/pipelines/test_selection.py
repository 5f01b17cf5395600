"""From a pair to a measured selector, on tiny models: root traces, selectors, bundles, arms, checks of labels."""

import json
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import yaml
from tqdm import tqdm

from pipelines import fit, selection, traces
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import ArmBuilder, fixed_tree
from pipelines.measuring.measurement_log import Blocks, MeasurementLog
from pipelines.measuring.selection import SelectionConfig, first_rounds
from pipelines.measuring.tables import FIRST_ROUNDS, PRICES
from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, write_prompts
from predictors.actions import Action
from predictors.bundle import read_bundle
from predictors.latency.profile import LatencyProfile
from predictors.latency.tables import LatencyTable
from predictors.sampling import SamplingSettings
from predictors.training.labelling.table import write_labels
from predictors.training.labelling.trees import TreeLabelConfig, label
from predictors.training.root_table import RootTable
from runtime import ModelPair, Randomness, load_decoder
from tests.pipelines.toy_bench import toy_bench, toy_prompts
from tests.predictors.affine_profile import PROFILE, SERVING

RULES = ("specinfer", "block")
ACTIONS = {"chains": [1, 3], "k": [2], "l1": [0, 1], "l2": [1]}
PARAMETERS = {
    "traces": {
        "trees": {
            "settings": [{"temperature": 1.0}],
            "actions": ACTIONS,
            "rules": list(RULES),
            "spacing": 4,
            "roots_per_prompt": 3,
            "prompts": [8, 4, 4],
            "threads": 1,
        }
    },
    "fit": {
        f"delayed_tree-{rule}": {
            "family": "tree",
            "rule": rule,
            "candidates": [{"states": True}, {"objective": "throughput"}],
            "training": {"width": 4, "hidden_sizes": [8, 8], "epochs": 3, "batch_size": 16},
            "calibration": {"bootstrap_replicates": 20},
        }
        for rule in RULES
    },
    "selection": {
        "checked_prompts": 4,
        "checked_rounds": 40,
        "checked_rules": ["specinfer"],
        "checked_actions": [{"k": 1, "l1": 3, "l2": 0}, {"k": 2, "l1": 1, "l2": 1}],
        "threads": 1,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, template_db):
    """A folder in which roots, both selectors and their measurement were made."""
    place = tmp_path_factory.mktemp("selection")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(template_db, place / 'mlflow.db')}")
        args = toy_bench(place, "unused", {})
        prompts = [
            p for split, count in (("train", 8), ("validation", 4), ("test", 4)) for p in toy_prompts(count, split)
        ]
        write_prompts(place / "prompts" / FILE, prompts)
        (place / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS}}))
        flat = np.array([0.5, 0.5])
        priced = {**PROFILE.tables, "verification_specinfer": LatencyTable({"drafted": (0, 16)}, flat, flat, flat, 1)}
        write_json(place / "latency" / "toy-1c.json", LatencyProfile(priced, "p", {}, {}, serving=SERVING).to_record())
        args.of, args.out = "trees", place / "traces" / "trees"
        args.trees = args.out
        traces.run(args)
        args.labels, args.traces, args.latency = place / "labels", place / "traces", place / "latency"
        args.labels.mkdir()
        write_labels(label(RootTable.read(args.trees), TreeLabelConfig()), args.labels / "trees.parquet")
        args.predictor = [f"delayed_tree-{rule}" for rule in RULES]
        args.fit, args.bundles = place / "fit", place / "bundles"
        fit.run(args)
        args.output = place / "selection"
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
            == json.loads((folder / "fit" / f"delayed_tree-{rule}.json").read_text())["profile_hash"]
        )
        rounds = decoder.generate(list(range(5)), max_new_tokens=12, temperature=1.0, randomness=Randomness(0)).rounds
        assert len(rounds) > 1 and not any(record.bypassed for record in rounds)
    assert all(action.is_chain for action in decoder.controller.actions), "block verification takes chains"


def test_records_say_what_a_selector_is_worth(folder):
    record = json.loads((folder / "fit" / "delayed_tree-specinfer.json").read_text())
    assert set(record["parts"]) == {"all", "T=1"} and set(record["uses"]) == {"code", "prose"}
    assert len(record["history"]) <= 3 and record["roots"] == 12 and record["documents"] == 2
    assert "oracle" in record["parts"]["all"]
    assert set(record["candidates"]) == {"tokens-states", "throughput-scalars"}
    gains = {name: one["validation_gain"] for name, one in record["candidates"].items()}
    assert gains[record["candidate"]] == max(gains.values())


def test_arms_are_a_selector_and_the_static_tree_that_it_knows(folder, pair):
    """The tree that is best at the arm's temperature, by the selector's own rule: the same text and rounds as drafted by hand."""
    rows = [
        ArmRow("delayed_tree-specinfer", "selector", bundle="delayed_tree-specinfer", temperatures=(1.0,)),
        ArmRow("static tree specinfer", "static tree", static_of="delayed_tree-specinfer", temperatures=(1.0,)),
        ArmRow("static tree block", "static tree", static_of="delayed_tree-block", temperatures=(1.0,)),
        ArmRow("static tree nss", "static tree", static_of="delayed_tree-nss", temperatures=(1.0,)),
    ]
    builder, settings = ArmBuilder(pair, folder / "bundles", 8), SamplingSettings(1.0)
    arms = builder.build(rows)
    assert builder.missing == ["delayed_tree-nss"] and set(arms) == {row.name for row in rows[:3]}
    for rule in RULES:
        arm, record = (
            arms[f"static tree {rule}"],
            json.loads((folder / "fit" / f"delayed_tree-{rule}.json").read_text()),
        )
        (action,) = [one for one in actions_of(folder, rule, pair) if one.name == record["static_actions"]["T=1"]]
        assert arm.verifier == rule and arm.decoder.controller.kind == "fixed"
        sampled = {"max_new_tokens": 8, "temperature": 1.0}
        by_hand = fixed_tree(pair, action, rule).generate([1, 2], randomness=Randomness(0), **sampled)
        run = arm.run([1, 2], settings, 0)
        assert run.tokens == by_hand.tokens
        assert [one.drafted for one in run.rounds] == [one.drafted for one in by_hand.rounds]
        others = [one for one in actions_of(folder, rule, pair) if one.depth != action.depth]
        wrong = fixed_tree(pair, others[0], rule).generate([1, 2], randomness=Randomness(0), **sampled)
        assert [one.levels for one in run.rounds] != [one.levels for one in wrong.rounds]


def actions_of(folder, rule, pair):
    return load_decoder(folder / "bundles" / f"delayed_tree-{rule}", pair).controller.actions


def test_static_trees_are_those_of_a_selector_at_one_temperature(folder, pair):
    with pytest.raises(ValueError, match="give one under temperatures"):
        ArmRow("static", "static tree", static_of="delayed_tree-block")
    with pytest.raises(ValueError, match="give one under temperatures"):
        ArmRow("static", "static tree", static_of="delayed_tree-block", temperatures=(0.0, 1.0))


def test_prices_are_those_of_the_bundles(folder):
    priced = json.loads((folder / "selection" / "toy-1c" / PRICES).read_text())
    assert set(priced) == set(RULES)
    for rule, one in priced.items():
        card = read_bundle(folder / "bundles" / f"delayed_tree-{rule}").card
        assert one["prices"]["action_seconds"] == card["prices"]["action_seconds"]
        assert len(one["actions"]) == len(one["prices"]["action_seconds"][0])


def test_real_rounds_begin_where_labels_were_made(folder):
    """Many first rounds at every root agree with the labels on average."""
    rounds = pd.read_parquet(folder / "selection" / "toy-1c" / FIRST_ROUNDS)
    labels = RootTable.read(folder / "traces" / "trees").rows("test")
    assert len(rounds) == len(labels) * 2
    found = rounds.groupby("action")[["emitted", "expected"]].mean()
    assert (found["emitted"] - found["expected"]).abs().max() < 0.25
    assert (rounds["emitted"].between(1, 4)).all()


def test_an_interrupted_measurement_goes_on(folder, pair, tmp_path):
    config = SelectionConfig(**{**PARAMETERS["selection"], "checked_actions": (Action(1, 3, 0),), "checked_rounds": 1})
    table, log = RootTable.read(folder / "traces" / "trees"), MeasurementLog(tmp_path / "log.jsonl", "f")

    def study(log):
        return first_rounds(pair, config, table, toy_prompts(4), Blocks(log, tqdm(disable=True)))

    whole = study(log)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    (tmp_path / "log.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    resumed = study(MeasurementLog(tmp_path / "log.jsonl", "f"))
    assert len(lines) > 3 and resumed == whole


def test_what_was_not_traced_cannot_be_checked(folder, pair, tmp_path):
    config = SelectionConfig(**{**PARAMETERS["selection"], "checked_actions": (Action(4, 4, 4),), "checked_rounds": 1})
    blocks = Blocks(MeasurementLog(tmp_path / "log.jsonl", "f"), tqdm(disable=True))
    with pytest.raises(ValueError, match="no root trace tells of delayed-4.4.4 under specinfer"):
        first_rounds(pair, config, RootTable.read(folder / "traces" / "trees"), toy_prompts(4), blocks)


def test_stages_need_what_they_build_on(folder, tmp_path):
    args = toy_bench(tmp_path, "selection", {})
    args.trees, args.bundles = folder / "traces" / "trees", tmp_path / "bundles"
    with pytest.raises(ValueError, match="no selector under"):
        selection.run(args)
    shutil.copytree(folder / "traces" / "trees", tmp_path / "roots")
    (tmp_path / "roots" / "manifest.json").unlink()
    args.trees = tmp_path / "roots"
    with pytest.raises(ValueError, match="collection did not finish"):
        selection.run(args)
