"""The stage ``benchmark`` on tiny models, from its parameters to the files it leaves."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from pipelines import benchmark
from pipelines.pair_folder import read_pair
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.pipelines.toy_bench import toy_bench

PARAMETERS = {
    "max_new_tokens": 6,
    "validation_prompts": 2,
    "test_prompts": 4,
    "gammas": [1, 2],
    "epsilons": [0.3],
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
    assert set(test["arm"]) == {
        *("autoregressive", "plain_hf_forward", "hf_generate", "hf_assisted"),
        *("chain-1", "chain-2", "confidence-0.3", "entropy"),
    }
    assert len(test) == 8 * 4 * 2 * 2
    assert (test["tokens"] == 6).all()
    ours = test[test["rounds"].notna()]
    phases = ours[["seconds_draft", "seconds_target", "seconds_verify", "seconds_controller", "seconds_rest"]]
    assert phases.sum(axis=1).to_numpy() == pytest.approx(ours["seconds"].to_numpy())
    assert (ours["emitted"] + 1 == ours["tokens"]).all()
    assert ours["accepted_histogram"].map(sum).eq(ours["rounds"]).all()
    assert (test[test["temperature"] == 0].groupby("arm")["equals_plain"].count() > 0).all()
    findings = json.loads((folder / benchmark.FINDINGS).read_text())
    assert len(findings["choices"]) == 4
    assert all(row["exact_float32"] for row in findings["exactness"])
    for found in (findings["forward_agreement"][name] for name in ("target", "draft")):
        assert 0 < found["compact"] < 1e-5 and found["rounding"] < 1e-5
    assert "hrad is left out" in findings["notes"][-1]
    origin = json.loads((folder / benchmark.PROVENANCE).read_text())
    assert origin["device"]["slug"] == "toy-1c"
    assert origin["bundle_sha256"] is None
    assert origin["parameters"]["gammas"] == [1, 2]
    assert len(pd.read_parquet(folder / benchmark.REPLAYS)) == 4
    assert not list(folder.glob("*.jsonl"))


def test_stage_leaves_the_numbers_of_other_devices(stage):
    other = stage.output / "other-device"
    other.mkdir()
    (other / "kept").write_text("kept")
    benchmark.run(stage)
    assert (other / "kept").exists()


def test_bundle_is_timed_and_its_fallback_is_noted(stage, tmp_path):
    location = read_pair(stage.pair_folder)
    random_bundle(tmp_path / "hrad", ModelPair.load(location.target, location.draft), temperatures=(0.0,))
    args = SimpleNamespace(**{**vars(stage), "bundles": tmp_path, "output": tmp_path / "benchmark"})
    benchmark.run(args)
    folder = args.output / "toy-1c"
    rows = pd.read_parquet(folder / benchmark.MEASUREMENTS)
    hrad = rows[rows["arm"] == "hrad"]
    assert len(hrad) == 4 * 2 * 2
    findings = json.loads((folder / benchmark.FINDINGS).read_text())
    assert {row["arm"]: row["exact_float32"] for row in findings["exactness"]}["hrad"]
    assert findings["bundle"]["thresholds"]["static_gamma"] == 2
    assert len(findings["notes"]) == 2
    assert "hrad is bypassed" in findings["notes"][0]
    assert findings["notes"][1] == "T=1: hrad stood aside in 100% of its rounds (static gamma instead)"
    assert len(json.loads((folder / benchmark.PROVENANCE).read_text())["bundle_sha256"]) == 64
