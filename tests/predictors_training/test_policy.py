"""Stage policy: a first controller from two trace sets, exported as a branch-parallel bundle."""

from pathlib import Path

import pytest

from pipelines.outputs import write_json
from predictors.bundle import read_bundle
from predictors.controllers import learned_controller
from predictors.training.trace_table import TraceTable
from tests.pipelines.hand_made_profile import PROFILE
from tests.predictors_training.synthetic import PARAMETERS, stage, synthetic_columns, write_parameters, write_traces


def test_a_policy_is_trained_on_all_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    branches = {**PARAMETERS["calibrate"], "decoding": "branches", "draft_cost": None, "branch_hit": 0.7}
    write_parameters({"policy": {"predictor": "extended"}, "calibrate": {"branches": branches}})
    write_json(Path("device.json"), {"slug": "toy-1c"})
    write_json(Path("latency/toy-1c.json"), PROFILE)
    sets = [write_traces(Path(name), synthetic_columns()) for name in ("rounds", "others")]
    stage("policy", *map(str, sets), "policy", "--device", "device.json", "--latency", "latency")
    card = read_bundle("policy").card
    assert card["decoder"] == {"preset": "specbranch", "gamma": PARAMETERS["labels"]["gamma"]}
    assert card["serving"] == PROFILE["serving"]
    assert card["lineage"]["traces_sha256"] != TraceTable(sets[0]).manifest.content_hash
    assert learned_controller(read_bundle("policy")).gamma == PARAMETERS["labels"]["gamma"]


def test_an_unknown_predictor_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_parameters({"policy": {"predictor": "extnded"}})
    with pytest.raises(SystemExit, match="section 'extnded' is missing"):
        stage("policy", "rounds", "policy")
