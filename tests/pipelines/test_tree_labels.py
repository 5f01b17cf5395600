"""From a pair to selectors of trees, on tiny models: root traces, labels that agree with real rounds, bundles, arms."""

import json
import shutil
import warnings
from dataclasses import asdict
from itertools import islice

import numpy as np
import pytest
import torch
import yaml

from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, write_prompts
from pipelines.stages import fit, traces
from predictors.actions import Action
from predictors.bundle import read_bundle
from predictors.config import parse_config
from predictors.latency.profile import LatencyProfile, LatencyTable
from predictors.training.labelling import LabelConfig, label_trees, write_labels
from predictors.training.tables import RootTable
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.drafting import DRAFTERS
from runtime.verification import VERIFIERS
from tests.pipelines.toy_bench import SHAPES, toy_bench, toy_pair, toy_prompts
from tests.predictors.affine_profile import PROFILE
from tests.toys import tiny_llama

RULES = ("specinfer", "block")
ACTIONS = {"chains": [1, 3], "k": [2], "l1": [0, 1], "l2": [1]}
PARAMETERS = {
    "traces": {
        "trees": {"settings": [{"temperature": 1.0}], "actions": ACTIONS, "rules": list(RULES), "spacing": 4}
        | {"roots_per_prompt": 3, "prompts": [8, 4, 4], "draws": [1, 1, 16], "threads": 1}
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
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, template_db):
    """A folder in which roots, both selectors and their bundles were made."""
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
        write_json(place / "latency" / "toy-1c.json", LatencyProfile(priced, "p", {}, {}).to_record())
        args.of, args.out = "trees", place / "traces" / "trees"
        args.trees = args.out
        traces.run(args)
        args.labels, args.traces, args.latency = place / "labels", place / "traces", place / "latency"
        args.labels.mkdir()
        write_labels(label_trees(RootTable.read(args.trees), LabelConfig()), args.labels / "trees.parquet")
        args.predictor = [f"delayed_tree-{rule}" for rule in RULES]
        args.fit, args.bundles = place / "fit", place / "bundles"
        fit.run(args)
    return place


@pytest.fixture(scope="module")
def pair(folder):
    return toy_pair(folder)


def test_bundles_decode(folder, pair):
    for rule in RULES:
        decoder = load_decoder(folder / "bundles" / f"delayed_tree-{rule}", pair)
        card = read_bundle(folder / "bundles" / f"delayed_tree-{rule}").card
        assert decoder.verifier.name == rule and card["selection"]["predictor"] == f"delayed_tree-{rule}"
        record = json.loads((folder / "fit" / f"delayed_tree-{rule}.json").read_text())
        assert card["prices"]["profile_hash"] == record["profile_hash"]
        rounds = decoder.generate(list(range(5)), max_new_tokens=12, temperature=1.0, randomness=Randomness(0)).rounds
        assert len(rounds) > 1 and not any(record.bypassed for record in rounds)
    assert all(action.is_chain for action in decoder.controller.actions), "block verification takes chains"


def test_records_say_what_a_selector_is_worth(folder):
    record = json.loads((folder / "fit" / "delayed_tree-specinfer.json").read_text())
    assert set(record["parts"]) == {"all", "T=1"}
    assert len(record["history"]) <= 3 and record["roots"] == 12 and record["documents"] == 2
    assert "oracle" in record["parts"]["all"]
    assert set(record["candidates"]) == {"tokens-states", "throughput-scalars"}
    gains = {name: one["validation_gain"] for name, one in record["candidates"].items()}
    assert gains[record["candidate"]] == max(gains.values())


def test_labels_are_what_real_rounds_emit_in_expectation(folder, pair):
    """A round from a root emits its label's tokens in expectation, and not those of another tree's label."""
    roots, prompts = RootTable.read(folder / "traces" / "trees").rows("test"), {one.id: one for one in toy_prompts(4)}
    rule = roots.manifest.rules.index("specinfer")
    for action in (Action(1, 3, 0), Action(2, 1, 1)):
        decoder = fixed_tree(pair, action)
        tree_ND, other_ND = (
            roots.efficiency_NDKA[:, :, rule, roots.actions.index(one)] for one in (action, Action(1, 1, 0))
        )
        emitted_NS = []
        for row, prompt in enumerate(roots.column("prompt_id")):
            *context, newest = [*prompts[prompt].tokens, *roots.continuation(row)]
            emitted_NS.append([emitted(decoder, context, newest, action.depth, seed) for seed in range(60)])
        rounds_N, labels_N = (np.asarray(each, dtype=float).mean(axis=1) for each in (emitted_NS, tree_ND))
        error_N = np.hypot(*(np.std(each, axis=1, ddof=1) / np.sqrt(len(each[0])) for each in (emitted_NS, tree_ND)))
        far_N, twin_N = ((rounds_N - labels) / error_N for labels in (labels_N, other_ND.mean(axis=1)))
        assert len(far_N) == 12 and (far_N**2).sum() < 33, "99.9 % of chi squared with 12 degrees of freedom"
        assert (twin_N**2).sum() > 33


def fixed_tree(pair, action):
    drafter = {"kind": "delayed_tree", **asdict(action)}
    return build_decoder(pair, {"method": "speculative", "drafter": drafter, "verifier": "specinfer"})


def emitted(decoder, context, newest, depth, seed):
    """Tokens of the first round, whose root is ``newest`` after ``context``."""
    options = {"max_new_tokens": depth + 2, "temperature": 1.0, "randomness": Begun(newest, Randomness(seed))}
    (begun, first) = islice(decoder.stream(context, **options), 2)
    assert begun.tokens == [newest]
    return len(first.tokens)


class Begun:
    """Chance whose first draw for the target is ``token``."""

    def __init__(self, token, chance):
        self.token, self.chance = token, chance

    def stream(self, purpose):
        stream = self.chance.stream(purpose)
        return Begun(self.token, stream) if purpose == "verify" else stream

    def categorical(self, weights):
        drawn = self.chance.categorical(weights)
        if self.token is not None:
            drawn, self.token = torch.full_like(drawn, self.token), None
        return drawn


@pytest.mark.parametrize("drafter", SHAPES, ids=lambda drafter: drafter["kind"])
def test_decoding_accepts_what_the_expectation_says(drafter):
    """Over many rounds, accepted tokens less their exact expectation on the round's own tree is zero within its error."""
    pair = ModelPair(tiny_llama(8, seed=0), tiny_llama(8, seed=1, layers=1))
    parsed = parse_config(DRAFTERS[drafter["kind"]], {key: drafter[key] for key in drafter if key != "kind"}, "")
    rules = [name for name, rule in VERIFIERS.items() if rule.chains_only is not parsed.branches]
    rules = [name for name in rules if parsed.laws <= VERIFIERS[name].lossless_for]
    assert len(rules) >= 2
    for name in rules:
        decoder, differences = build_decoder(pair, {"method": "speculative", "drafter": drafter, "verifier": name}), []
        for seed in range(3):
            options = {"max_new_tokens": 120, "temperature": 1.0, "randomness": Randomness(seed), "observe": True}
            for step in decoder.stream([1, 2, 3], **options):
                if step.evidence is not None and step.evidence.tree.num_nodes:
                    outcome = VERIFIERS[name](step.evidence.tree, step.evidence.target_probs)
                    differences.append(step.record.accepted - outcome.expected_accepted_length())
        error = np.std(differences) / np.sqrt(len(differences))
        assert len(differences) > 60
        assert abs(np.mean(differences)) < 3.5 * error, name
