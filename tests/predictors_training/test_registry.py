"""Registration: one version per bundle content, whoever calls how often."""

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.cli import main
from pipelines.registry import Registry
from pipelines.tracking import new_client
from predictors.bundle import CARD, bundle_hash
from predictors.controllers import build_controller
from tests.predictors_training.stages import HEAD, fit, write_parameters


@pytest.fixture
def copied(finished, workspace):
    for name in ("data", "latency"):
        shutil.copytree(finished / name, workspace / name)
    shutil.copy(finished / "device.json", workspace)
    return workspace


def versions(folder, name="p-hrad"):
    client = new_client(f"sqlite:///{folder}/mlflow.db")
    return sorted(client.search_model_versions(f"name = '{name}'"), key=lambda version: int(version.version)), client


def register(capsys) -> str:
    capsys.readouterr()
    main(["register"])
    return capsys.readouterr().out


def test_registration_is_idempotent_by_content(copied, traces, capsys):
    folder = copied / "data/p/bundles/hrad"
    assert register(capsys) == (
        "data/p/bundles/hrad: registered as p-hrad version 1, alias challenger\n"
        "data/p/bundles/length: registered as p-length version 1, alias challenger\n"
    )
    (first,), client = versions(copied)
    assert first.tags["bundle_sha256"] == bundle_hash(folder) and first.run_id
    client.delete_registered_model_alias("p-hrad", "challenger")
    assert "already registered as p-hrad version 1" in register(capsys)
    assert len(versions(copied)[0]) == 1
    assert client.get_model_version_by_alias("p-hrad", "challenger").version == first.version

    write_parameters({"fit": {"hrad": HEAD | {"prior_correction": False}}})
    fit("hrad", traces)
    printed = register(capsys)
    assert "registered as p-hrad version 2" in printed and "already registered as p-length version 1" in printed
    assert str(client.get_model_version_by_alias("p-hrad", "challenger").version) == "2"
    assert len(versions(copied)[0]) == 2


@pytest.mark.parametrize("kind", ["hrad", "length"])
def test_the_registered_model_predicts_what_the_bundle_does(copied, capsys, monkeypatch, kind):
    import mlflow

    register(capsys)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    mlflow.set_tracking_uri(f"sqlite:///{copied}/mlflow.db")
    model = mlflow.pyfunc.load_model(f"models:/p-{kind}@challenger")
    controller = build_controller({"kind": kind, "bundle": f"data/p/bundles/{kind}"})
    features = torch.randn(7, controller.num_features)
    with torch.inference_mode():
        logits = controller.network(features)
        expected = [made.calibration.probabilities(logits) for made in controller.settings]
        expected = torch.cat(expected, dim=1).numpy()
    assert np.array_equal(model.predict(features.numpy()), expected)
    with pytest.raises(mlflow.exceptions.MlflowException):
        model.predict(features.numpy()[:, :-1])


def test_the_version_leads_back_to_the_training_run(finished, copied, capsys):
    shutil.copy(finished / "mlflow.db", copied / "mlflow.db")
    register(capsys)
    (version,), client = versions(copied)
    run = client.get_run(version.run_id)
    assert run.data.params["feature_set"] == "extended" and run.info.status == "FINISHED"


def test_the_length_bundle_is_registered_as_itself(copied, capsys):
    register(capsys)
    (version,), _ = versions(copied, "p-length")
    assert version.tags["bundle_sha256"] == bundle_hash(copied / "data/p/bundles/length")
    assert version.tags["predictor"] == "length"
    info = mlflow_model_info(version)
    assert info.signature.outputs.inputs[0].shape == (-1, 2 * 5) and info.signature.inputs.inputs[0].shape[0] == -1


def mlflow_model_info(version):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{Path.cwd()}/mlflow.db")
    return mlflow.models.get_model_info(f"models:/{version.name}/{version.version}")


def test_a_damaged_bundle_is_refused_before_anything_is_registered(copied):
    (copied / "data/p/bundles/hrad" / CARD).write_text("{")
    with pytest.raises(SystemExit, match="damaged bundle"):
        main(["register"])
    assert versions(copied)[0] == []


def test_no_bundle_is_told(workspace):
    with pytest.raises(SystemExit, match="no bundle under data"):
        main(["register"])


def test_an_unreachable_registry_is_told(copied, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed.getsockname()[1]}")
    with pytest.raises(SystemExit, match=r"cannot be reached.*earlier results are kept"):
        main(["register"])
    with pytest.raises(ValueError, match="cannot be reached"):
        Registry()


def test_fetch_brings_what_was_registered(copied, capsys):
    register(capsys)
    main(["fetch", "models:/p-hrad@challenger", "served/hrad"])
    assert "p-hrad version 1, content" in capsys.readouterr().out
    assert bundle_hash("served/hrad") == bundle_hash("data/p/bundles/hrad")
    main(["fetch", "models:/p-hrad/1", "served/hrad"])
    assert not list(Path("served").glob("*.partial"))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("models:/p-hrad@champion", "has no alias 'champion'. Known: challenger"),
        ("models:/p-hrad/7", "p-hrad has no version 7"),
        ("models:/q-hrad@champion", "nothing is registered as q-hrad"),
        ("p-hrad", "names no registered model: say models:/NAME@ALIAS"),
    ],
)
def test_fetch_says_what_is_missing(copied, capsys, model, words):
    register(capsys)
    with pytest.raises(SystemExit, match=words):
        main(["fetch", model, "served/hrad"])
    assert not Path("served/hrad").exists()


def test_content_that_changed_in_the_registry_is_not_fetched(copied, capsys):
    register(capsys)
    client = new_client(f"sqlite:///{copied}/mlflow.db")
    client.set_model_version_tag("p-hrad", "1", "bundle_sha256", "0" * 64)
    with pytest.raises(SystemExit, match="registered with content 000000000000, and what the registry holds now is"):
        main(["fetch", "models:/p-hrad/1", "served/hrad"])
    assert not Path("served/hrad").exists()
