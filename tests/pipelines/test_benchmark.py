"""The stage ``benchmark`` on tiny models, from its parameters to the files it leaves."""

import json
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest

from pipelines import benchmark
from pipelines.measuring.names import branch_arm
from pipelines.pair_folder import read_pair
from predictors.rounds import PHASES
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.pipelines.toy_bench import toy_bench

PARAMETERS = {
    "max_new_tokens": 6,
    "validation_prompts": 2,
    "test_prompts": 4,
    "gammas": [1, 2],
    "epsilons": [0.3],
    "branch_gammas": [1, 2],
    "threads": 1,
    "replay_prompts": 1,
    "replay_repeats": 1,
    "exactness_prompts": 2,
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The whole stage on tiny models: its arguments, already run once."""
    args = toy_bench(tmp_path_factory.mktemp("stage"), "benchmark", PARAMETERS)
    args.bundles = args.output.parent / "bundles"
    benchmark.run(args)
    return args


def test_stage_writes_all_rows_and_their_origin(stage):
    folder = stage.output / "toy-1c"
    rows = pd.read_parquet(folder / benchmark.MEASUREMENTS)
    test = rows[rows["split"] == "test"]
    arms = set(test["arm"])
    chosen = {arm for arm in arms if branch_arm(arm) is not None and not branch_arm(arm).wall}
    assert {branch_arm(arm).preset for arm in chosen} == {"pearl", "specbranch-no-hrad"}
    assert arms == chosen | {f"{arm}-wall" for arm in chosen} | {
        *("autoregressive", "plain_hf_forward", "hf_generate", "hf_assisted"),
        *("chain-1", "chain-2", "confidence-0.3", "entropy"),
    }
    assert len(test) == len(arms) * 4 * 2 * 2
    assert (test["tokens"] == 6).all()
    assert test["virtual"].eq(test["arm"].isin(chosen)).all()
    ours = test[test["rounds"].notna()]
    phases = ours[[f"seconds_{phase}" for phase in (*PHASES, "rest")]]
    assert phases.sum(axis=1).to_numpy() == pytest.approx(ours["seconds"].to_numpy())
    assert (ours["emitted"] + 1 == ours["tokens"]).all()
    assert ours["accepted_histogram"].map(sum).eq(ours["rounds"]).all()
    assert (test[test["temperature"] == 0].groupby("arm")["equals_plain"].count() > 0).all()
    findings = json.loads((folder / benchmark.FINDINGS).read_text())
    assert len(findings["choices"]) == 2 * 4
    assert set(json.loads((folder / benchmark.TIMELINES).read_text())) == {arm for arm in arms if branch_arm(arm)}
    assert all(row["exact_float32"] for row in findings["exactness"])
    for found in (findings["forward_agreement"][name] for name in ("target", "draft")):
        assert 0 < found["compact"] < 1e-5 and found["rounding"] < 1e-5
    assert [note.split(": the arm ")[1] for note in findings["notes"][-4:]] == [
        f"{name} is left out" for name in ("hrad", "length", "specbranch", "specbranch-no-branch")
    ]
    origin = json.loads((folder / benchmark.PROVENANCE).read_text())
    assert origin["device"]["slug"] == "toy-1c"
    assert origin["bundle_sha256"] is None and origin["length_bundle_sha256"] is None
    assert origin["parameters"]["gammas"] == [1, 2]
    assert len(pd.read_parquet(folder / benchmark.REPLAYS)) == 4
    assert not list(folder.glob("*.jsonl"))


def test_stage_leaves_the_numbers_of_other_devices(stage):
    other = stage.output / "other-device"
    other.mkdir()
    (other / "kept").write_text("kept")
    benchmark.run(stage)
    assert (other / "kept").exists()


@pytest.fixture(scope="module")
def with_bundles(stage, tmp_path_factory):
    """What the stage finds with a bundle of each kind, both calibrated for T=0 only: runs, findings and origin."""
    folder, location = tmp_path_factory.mktemp("bundles"), read_pair(stage.pair_folder)
    pair = ModelPair.load(location.target, location.draft)
    for kind in ("hrad", "length"):
        random_bundle(folder / "bundles" / kind, pair, temperatures=(0.0,), kind=kind)
    for preset in ("specbranch", "specbranch-no-branch"):
        decoder = {"preset": preset, "gamma": 2}
        change = partial(dict.update, decoder=decoder)
        random_bundle(folder / "bundles" / preset, pair, temperatures=(0.0,), change=change)
    args = SimpleNamespace(**{**vars(stage), "bundles": folder / "bundles", "output": folder / "benchmark"})
    benchmark.run(args)
    output = args.output / "toy-1c"
    records = [json.loads((output / name).read_text()) for name in (benchmark.FINDINGS, benchmark.PROVENANCE)]
    return pd.read_parquet(output / benchmark.MEASUREMENTS), *records


@pytest.mark.parametrize("kind", ["hrad", "length"])
def test_bundle_is_timed_and_its_fallback_is_noted(with_bundles, kind):
    rows, findings, origin = with_bundles
    assert len(rows[rows["arm"] == kind]) == 4 * 2 * 2
    assert {row["arm"]: row["exact_float32"] for row in findings["exactness"]}[kind]
    assert findings["bundles"][kind]["thresholds"]["static_gamma"] == 2
    assert findings["bundles"][kind]["calibrated_settings"] == [[0.0, 0.0, 1.0]]
    assert any(note.startswith(f"{kind} is bypassed") for note in findings["notes"])
    assert f"T=1: {kind} stood aside in 100% of its rounds (static gamma instead)" in findings["notes"]
    hashes = [origin[name] for name in ("bundle_sha256", "length_bundle_sha256")]
    assert len(set(hashes)) == 2 and all(len(name) == 64 for name in hashes)


@pytest.mark.parametrize("preset, arms", [("specbranch", 2), ("specbranch-no-branch", 1)])
def test_presets_with_a_head_are_timed_from_their_bundles(with_bundles, preset, arms):
    rows, findings, _ = with_bundles
    found = {arm for arm in rows["arm"] if branch_arm(arm) is not None and branch_arm(arm).preset == preset}
    assert len(found) == arms and all(branch_arm(arm).gamma == 2 for arm in found)
    assert {row["arm"]: row["exact_float32"] for row in findings["exactness"]}[f"{preset}-2"]
    assert f"T=1: {preset} stood aside in 100% of its rounds (static gamma instead)" in findings["notes"]


def test_the_report_finds_hrads_bundle_where_it_was(with_bundles):
    _, findings, _ = with_bundles
    assert findings["bundle"] == findings["bundles"]["hrad"]


def test_every_learned_arms_own_bypassed_rounds_are_noted():
    rows = [
        {"arm": arm, "temperature": temperature, "rounds": 10, "bypassed": bypassed}
        for arm, temperature, bypassed in (("hrad", 0.0, 0), ("length", 0.0, 2), ("length", 0.0, 1), ("hrad", 1.0, 10))
    ]
    assert benchmark._bypass_notes(rows, ["hrad", "length"]) == [
        "T=0: length stood aside in 15% of its rounds (static gamma instead)",
        "T=1: hrad stood aside in 100% of its rounds (static gamma instead)",
    ]
