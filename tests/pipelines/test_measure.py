"""The stage ``measure`` on tiny models, from its table of arms to the files it leaves."""

import json
import re
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from pipelines.measuring.names import DECODES_FILE, FINDINGS, PROVENANCE, ROUNDS_FILE
from pipelines.measuring.tables import read_decodes, read_rounds
from pipelines.places import read_pair
from pipelines.stages import measure
from predictors.rounds import PHASES
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.pipelines.toy_bench import toy_bench

ARMS = yaml.safe_load("""
- {name: autoregressive, family: plain, decoder: {method: autoregressive}}
- {name: plain_hf_forward, family: plain, decoder: {method: autoregressive}, forward: hugging_face}
- {name: hf_generate, family: hugging_face, hugging_face: generate}
- {name: hf_assisted, family: hugging_face, hugging_face: assisted}
- name: chain-{gamma}
  decoder: {method: speculative, drafter: {kind: chain, gamma: '{gamma}'}, verifier: block}
  <<: {family: chain, choose: true, each: {gamma: [1, 2]}}
- name: confidence-{epsilon}
  decoder:
    controller: {kind: confidence, epsilon: '{epsilon}'}
    <<: {method: speculative, drafter: {kind: chain, gamma: 2}, verifier: block}
  <<: {family: confidence, choose: true, each: {epsilon: [0.3, 0.5]}}
- name: pearl-{gamma}
  decoder: {preset: pearl, gamma: '{gamma}', overlap: none}
  <<: {family: pearl, choose: true, each: {gamma: [1, 2]}}
- {name: hrad, family: learned, bundle: hrad}
- {name: specbranch-2, family: specbranch, bundle: specbranch, options: {overlap: none}}
""")
PARAMETERS = {"arms": ARMS, "max_new_tokens": 6, "validation_prompts": 2, "test_prompts": 4, "threads": 1}
PARAMETERS |= {"exactness_prompts": 2}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The whole stage on tiny models without bundles: its arguments, already run once."""
    args = toy_bench(tmp_path_factory.mktemp("stage"), "measure", PARAMETERS)
    args.bundles = args.output.parent / "bundles"
    measure.run(args)
    return args


@pytest.fixture(scope="module")
def decodes(stage):
    return pd.DataFrame(read_decodes(stage.output / "toy-1c" / DECODES_FILE))


@pytest.fixture(scope="module")
def findings(stage):
    return json.loads((stage.output / "toy-1c" / FINDINGS).read_text())


def test_a_drafter_is_measured_where_hugging_face_cannot_assist_with_it(tmp_path):
    arms = [arm for arm in ARMS if arm["family"] in ("plain", "hugging_face", "chain", "pearl")]
    counts = {"validation_prompts": 1, "test_prompts": 2, "exactness_prompts": 1}
    args = toy_bench(tmp_path, "measure", PARAMETERS | counts | {"arms": arms}, drafter=True)
    args.bundles = tmp_path / "bundles"
    measure.run(args)
    folder = args.output / "toy-1c"
    made = pd.DataFrame(read_decodes(folder / DECODES_FILE))
    ours = {"autoregressive", "plain_hf_forward", "chain-1", "chain-2", "pearl-1", "pearl-2"}
    assert set(made["arm"]) == ours | {"hf_generate"}
    assert all(row["exact_float32"] for row in json.loads((folder / FINDINGS).read_text())["exactness"])
    assert set(json.loads((folder / PROVENANCE).read_text())["models"]) == {"target", "draft"}


CHOSEN = {"chain-1", "chain-2", "confidence-0.3", "confidence-0.5", "pearl-1", "pearl-2"}


def test_what_was_chosen_is_timed_on_every_test_prompt(decodes, findings):
    """And every static chain: which of them is best is not for validation prompts alone to say."""
    test = decodes[decodes["split"] == "test"]
    every = {"chain-1", "chain-2", "autoregressive", "plain_hf_forward", "hf_generate", "hf_assisted"}
    every |= {one["arm"] for one in findings["choices"]}
    by_block = test.groupby("block")["arm"].agg(set)
    assert len(by_block) == 4 * 2 and all(arms == every for arms in by_block)
    assert len(test) == len(by_block) * len(every) and test["prompt"].nunique() == 4
    assert (test["tokens"] == 6).all() and set(decodes["pair"]) == {"p"}
    assert test["virtual"].eq(test["arm"].isin({"pearl-1", "pearl-2"})).all()
    assert set(test[test["arm"].isin({"chain-1", "chain-2"})]["verifier"]) == {"block"}


def test_validation_prompts_time_what_is_to_be_chosen(decodes, findings):
    validation = decodes[decodes["split"] == "validation"]
    assert set(validation["arm"]) == {"autoregressive", *CHOSEN} and len(validation) == 7 * 2 * 2
    families = ("chain", "confidence", "pearl")
    made = [(one["temperature"], one["family"]) for one in findings["choices"]]
    assert made == [(temperature, family) for temperature in (0.0, 1.0) for family in families]
    for one in findings["choices"]:
        rows = validation[(validation["temperature"] == one["temperature"]) & (validation["family"] == one["family"])]
        sums = rows.groupby("arm")[["tokens", "seconds"]].sum()
        rates = (sums["tokens"] / sums["seconds"]).to_dict()
        assert one["arm"] == max(rates, key=rates.get) and one["tokens_per_second"] == pytest.approx(rates)


def test_counts_and_seconds_of_a_decode_are_those_of_its_rounds(stage, decodes):
    ours = decodes[decodes["rounds"].notna()]
    phases = ours[[f"seconds_{phase}" for phase in (*PHASES, "rest")]]
    assert phases.sum(axis=1).to_numpy() == pytest.approx(ours["seconds"].to_numpy())
    assert (ours["emitted"] + 1 == ours["tokens"]).all()
    rounds = pd.DataFrame(read_rounds(stage.output / "toy-1c" / ROUNDS_FILE))
    later = rounds[~rounds["prefill"]].groupby(["block", "arm"])[["accepted", "emitted", "submitted"]].sum()
    of_decodes = ours.set_index(["block", "arm"]).loc[later.index]
    assert (later == of_decodes[["accepted", "emitted", "submitted"]].astype(int)).all().all()


def test_greedy_texts_are_the_targets_own(decodes, findings):
    greedy = decodes[decodes["temperature"] == 0]
    assert set(greedy.groupby("prompt")["output"].agg(lambda texts: len({tuple(text) for text in texts}))) == {1}
    assert all(row["exact_float32"] for row in findings["exactness"]) and len(findings["exactness"]) >= 8
    for found in (findings["forward_agreement"][name] for name in ("target", "draft")):
        assert 0 < found["compact"] < 1e-5 and found["rounding"] < 1e-5


def test_origin_stands_beside_the_tables(stage, findings):
    folder = stage.output / "toy-1c"
    origin = json.loads((folder / PROVENANCE).read_text())
    assert origin["device"]["slug"] == "toy-1c" and origin["hrad_bundle_sha256"] is None
    assert origin["parameters"]["test_prompts"] == 4
    assert [re.search(r"bundle (\w+)", note)[1] for note in findings["notes"][-2:]] == ["hrad", "specbranch"]
    assert not list(folder.glob("*.jsonl"))


def test_bundles_are_timed_and_their_fallback_is_noted(stage, tmp_path):
    location = read_pair(stage.pair_folder)
    pair = ModelPair.load(location.target, location.draft)
    random_bundle(tmp_path / "bundles" / "hrad", pair, temperatures=(0.0,), kind="hrad")
    change = partial(dict.update, decoder={"preset": "specbranch", "gamma": 2})
    random_bundle(tmp_path / "bundles" / "specbranch", pair, temperatures=(0.0,), change=change)
    args = SimpleNamespace(**{**vars(stage), "bundles": tmp_path / "bundles", "output": tmp_path / "measured"})
    measure.run(args)
    output = args.output / "toy-1c"
    found, origin = (json.loads((output / name).read_text()) for name in (FINDINGS, PROVENANCE))
    assert {"hrad", "specbranch-2"} <= {row["arm"] for row in read_decodes(output / DECODES_FILE)}
    assert all(row["exact_float32"] for row in found["exactness"])
    assert ["T=1", "hrad", "100%"] in [re.findall(r"^T=1|hrad|\d+%", note) for note in found["notes"]]
    hashes = [origin[f"{name}_bundle_sha256"] for name in ("hrad", "specbranch")]
    assert len(set(hashes)) == 2 and all(len(name) == 64 for name in hashes)
