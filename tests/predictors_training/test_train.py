"""Stage ``train``: what it writes, what it tracks, and that a failure costs nothing."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from predictors.training.target import Target

from pipelines.head_folder import read_head
from pipelines.outputs import replacing
from pipelines.tracking import Tracking, new_client, require_reachable
from predictors.training import fit as fit_module
from predictors.training.label_table import read_labels
from tests.predictors_training.synthetic import (
    FAST,
    run_stages,
    stage,
    synthetic_columns,
    write_parameters,
    write_traces,
)


def train(predictor="paper"):
    stage("train", "--predictor", predictor, "data/p/labels/hrad.parquet", f"data/p/predictors/{predictor}")


@pytest.fixture
def labelled(workspace, traces):
    run_stages(traces, last="labels")
    return workspace


def test_the_same_inputs_give_the_same_bytes(labelled, finished):
    train("extended")
    for name in ("head.safetensors", "head.json", "history.json"):
        path = Path("data/p/predictors/extended") / name
        assert path.read_bytes() == (finished / path).read_bytes(), name


def test_the_head_says_what_it_is(finished):
    head = read_head(finished / "data/p/predictors/extended")
    assert head.spec.feature_set == "extended" and head.spec.layers == head.contract.identity.layer_ids == (2, 3)
    assert head.facts["class_shares"]["training"] == pytest.approx([1 / 3] * 3)
    assert head.facts["config"]["reduced_size"] == 4
    assert head.target == Target("classes", 4) and head.network.num_classes == 3
    assert not head.network.training


def test_a_length_head_has_a_class_for_every_length(finished):
    head = read_head(finished / "data/p/predictors/length")
    assert head.target == Target("length", 4) and head.network.num_classes == 5
    assert head.facts["class_shares"]["training"] == pytest.approx([1 / 5] * 5)
    table = read_labels(finished / "data/p/labels/hrad.parquet").rows("train")
    shares = np.bincount(np.minimum(table.accepted, 4)) / len(table)
    assert head.facts["class_shares"]["natural"] == pytest.approx(shares.tolist())


def test_the_run_holds_parameters_curves_and_hashes(finished):
    client = new_client(f"sqlite:///{finished}/mlflow.db")
    experiment = client.get_experiment_by_name("draftwright-p")
    head = read_head(finished / "data/p/predictors/paper")
    (run,) = client.search_runs([experiment.experiment_id], f"tags.head_sha256 = '{head.sha256}'")
    assert run.info.status == "FINISHED"
    assert run.data.params["learning_rate"] == "0.01" and run.data.params["gamma"] == "4"
    for name in ("labels_sha256", "traces_sha256", "contract_sha256"):
        assert run.data.tags[name] == head.facts[name]
    history = json.loads((finished / "data/p/predictors/paper/history.json").read_text())
    curve = [point.value for point in client.get_metric_history(run.info.run_id, "val_loss")]
    assert curve == pytest.approx([epoch["val_loss"] for epoch in history])
    assert "test_macro_auc" in run.data.metrics and "test_value_head" in run.data.metrics
    plots = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert plots >= {"reliability.png", "confusion.png"}


def test_no_run_id_enters_an_output(finished):
    client = new_client(f"sqlite:///{finished}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("draftwright-p").experiment_id])
    assert len(runs) == 3
    files = [path for path in (finished / "data").rglob("*") if path.is_file()]
    assert len(files) > 8
    assert not any(run.info.run_id.encode() in path.read_bytes() for run in runs for path in files)


def test_an_unreachable_server_is_told_before_any_work(labelled, monkeypatch):
    train()
    before = {path.name: path.read_bytes() for path in Path("data/p/predictors/paper").iterdir()}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(fit_module, "fit", lambda *_: pytest.fail("trained before the server was probed"))
    start = time.monotonic()
    with pytest.raises(SystemExit, match=rf"127\.0\.0\.1:{port} cannot be reached .*unset MLFLOW_TRACKING_URI"):
        train()
    assert time.monotonic() - start < 6
    assert before == {path.name: path.read_bytes() for path in Path("data/p/predictors/paper").iterdir()}


def test_an_unreachable_database_server_is_told_without_its_password():
    with pytest.raises(ValueError, match=r"postgresql://127\.0\.0\.1:9/mlflow cannot be reached") as caught:
        require_reachable("postgresql://user:secret@127.0.0.1:9/mlflow")
    assert "secret" not in str(caught.value)
    for password in ("secret", "se#secret", "se?secret"):
        with pytest.raises(ValueError, match=r"oracle://127\.0\.0\.1/mlflow' is no tracking server") as caught:
            require_reachable(f"oracle://user:{password}@127.0.0.1/mlflow")
        assert "secret" not in str(caught.value)


def test_a_failed_training_keeps_the_earlier_head_and_marks_its_run(labelled, monkeypatch):
    train()
    before = Path("data/p/predictors/paper/head.safetensors").read_bytes()
    monkeypatch.setattr("pipelines.head_folder.save_file", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(SystemExit, match="disk full"):
        train()
    assert Path("data/p/predictors/paper/head.safetensors").read_bytes() == before
    assert not list(Path("data/p/predictors").glob("*.partial"))
    tracking = Tracking("p")
    statuses = [run.info.status for run in tracking.client.search_runs([tracking.experiment_id])]
    assert sorted(statuses) == ["FAILED", "FINISHED"]


def test_a_head_that_came_from_a_cache_gets_a_run(workspace):
    tracking = Tracking("p")
    first = tracking.run_of("abc", "paper")
    assert tracking.run_of("abc", "paper") == first != tracking.run_of("def", "paper")


def test_unknown_settings_and_predictors_are_refused_by_name(labelled):
    write_parameters({"train": {"paper": {"feature_set": "paper", **FAST, "momentum": 1}}})
    with pytest.raises(SystemExit, match=r"pairs\.p\.train\.paper: unknown key 'momentum'"):
        train()
    with pytest.raises(SystemExit, match="section 'extended' is missing"):
        train("extended")


@pytest.mark.parametrize("few, message", [(4, "3 neighbours of class 'all'"), (1, "class weights instead")])
def test_a_scarce_class_gives_one_message_and_a_head(workspace, few, message):
    columns = synthetic_columns()
    surplus = np.flatnonzero((columns["accepted"] == 4) & (columns["split"] == "train"))[few:]
    columns["accepted"][surplus] = 1
    run_stages(write_traces(workspace / "rounds", columns), last="labels")
    with pytest.warns(UserWarning, match=message) as caught:
        train()
    assert len([warning for warning in caught if "SMOTE" in str(warning.message)]) == 1
    assert read_head(Path("data/p/predictors/paper")).facts["balance"] == ("smote" if few > 1 else "class_weights")


def test_damaged_labels_are_told(labelled):
    path = Path("data/p/labels/hrad.parquet")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(SystemExit, match=r"hrad\.parquet: not a readable Parquet file"):
        train()


def test_a_damaged_head_is_told(workspace, finished):
    folder = finished / "data/p/predictors/paper"
    Path("head.json").write_bytes((folder / "head.json").read_bytes())
    with pytest.raises(ValueError, match="holds no trained head"):
        read_head(Path())
    Path("head.safetensors").write_bytes((folder / "head.safetensors").read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged head"):
        read_head(Path())


def test_an_output_appears_whole_or_not_at_all(tmp_path):
    for make in (lambda path: path.write_text("new"), lambda path: (path.mkdir(), (path / "a").write_text("new"))):
        target = tmp_path / "target"
        with replacing(target) as partial:
            make(partial)
        with pytest.raises(RuntimeError), replacing(target) as partial:
            make(partial)
            raise RuntimeError
        assert (target if target.is_file() else target / "a").read_text() == "new"
        assert [path.name for path in tmp_path.iterdir()] == ["target"]
        if target.is_file():
            target.unlink()


@pytest.mark.parametrize("stage_name", ["labels", "train", "calibrate", "export", "register"])
def test_help_imports_no_heavy_library(stage_name):
    code = f"""
import sys, pipelines.{stage_name}
print([name for name in ("torch", "mlflow", "lightning", "sklearn", "pyarrow") if name in sys.modules])"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
