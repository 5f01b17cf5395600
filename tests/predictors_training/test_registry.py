"""Registration: one version per bundle content of every family, whoever calls how often."""

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.cli import main
from pipelines.outputs import write_json
from pipelines.registry.tracking import new_client
from pipelines.registry.versions import Registry
from predictors.bundle import CARD, bundle_hash, read_bundle
from predictors.controllers import learned_controller
from runtime import ModelPair
from tests.bundles import random_bundle, selector_bundle, stop_bundle
from tests.toys import tiny_llama

FAMILIES = {
    "delayed_tree-traversal": selector_bundle,
    "early_stop-1": stop_bundle,
    "hrad": random_bundle,
    "length": lambda folder, pair, **changes: random_bundle(folder, pair, kind="length", **changes),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Bundles of all families that are trained."""
    folder = tmp_path_factory.mktemp("exported")
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))
    for name, write in FAMILIES.items():
        origin = {"selection": {"predictor": name}, "lineage": {"head_sha256": name}}
        write(folder / name, pair, change=lambda card, origin=origin: card.update(origin))
    return folder


@pytest.fixture
def copied(exported, template_db, tmp_path, monkeypatch):
    """The current folder, with these bundles of pair ``p`` and an empty registry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    shutil.copy(template_db, tmp_path / "mlflow.db")
    shutil.copytree(exported, tmp_path / "data/p/bundles")
    return tmp_path


def versions(folder, name="p-hrad"):
    client = new_client(f"sqlite:///{folder}/mlflow.db")
    return sorted(client.search_model_versions(f"name = '{name}'"), key=lambda version: int(version.version)), client


def register(capsys) -> str:
    capsys.readouterr()
    main(["register"])
    return capsys.readouterr().out


def test_registration_is_idempotent_by_content(copied, capsys):
    folder = copied / "data/p/bundles/hrad"
    said = [f"data/p/bundles/{name}: registered as p-{name} version 1, alias challenger" for name in FAMILIES]
    assert register(capsys).splitlines() == said
    (first,), client = versions(copied)
    assert first.tags["bundle_sha256"] == bundle_hash(folder)
    client.delete_registered_model_alias("p-hrad", "challenger")
    assert "already registered as p-hrad version 1" in register(capsys)
    assert len(versions(copied)[0]) == 1
    assert client.get_model_version_by_alias("p-hrad", "challenger").version == first.version

    random_bundle(folder, ModelPair(tiny_llama(seed=0), tiny_llama(seed=1)), static_gamma=1)
    register(capsys)
    assert str(client.get_model_version_by_alias("p-hrad", "challenger").version) == "2"
    assert (len(versions(copied)[0]), len(versions(copied, "p-length")[0])) == (2, 1)


def test_the_run_of_a_head_has_plots_of_its_calibration(copied, capsys):
    """By the quality that stage ``fit`` leaves beside the bundles; of others there are none."""
    bins = [{"confidence": 0.4, "accuracy": 0.5}]
    known = {"ece": 0.1, "reliability": bins, "confusion": [[2, 1, 0], [0, 3, 0], [1, 0, 2]]}
    metrics = {"head": known, "head_uncalibrated": known}
    part = {"metrics": metrics, "policies": {}, "static_length": 3}
    record = {"family": "head", "classes": ["none", "some", "all"], "parts": {"T=0": part, "T=1": part}}
    write_json(copied / "data/p/fit/hrad.json", record)
    write_json(copied / "data/p/fit/early_stop-1.json", {"family": "stop"})
    register(capsys)
    for name, plots in (("hrad", {"reliability.png"}), ("early_stop-1", set()), ("length", set())):
        (version,), client = versions(copied, f"p-{name}")
        assert {file.path for file in client.list_artifacts(version.run_id)} == plots


@pytest.mark.parametrize("name", FAMILIES)
def test_the_registered_model_predicts_what_the_bundle_does(copied, capsys, monkeypatch, name):
    import mlflow

    register(capsys)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    mlflow.set_tracking_uri(f"sqlite:///{copied}/mlflow.db")
    model = mlflow.pyfunc.load_model(f"models:/p-{name}@challenger")
    controller = learned_controller(read_bundle(f"data/p/bundles/{name}"))
    features = torch.randn(5, controller.num_features, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = controller.outputs(features).numpy()
    assert np.array_equal(model.predict(features.numpy()), expected) and len(np.unique(expected, axis=0)) > 1
    with pytest.raises(mlflow.exceptions.MlflowException):
        model.predict(features.numpy()[:, :-1])
    (version,), _ = versions(copied, f"p-{name}")
    assert version.tags["predictor"] == name
    signature = mlflow.models.get_model_info(f"models:/p-{name}@challenger").signature
    assert signature.inputs.inputs[0].shape == (-1, controller.num_features)
    assert signature.outputs.inputs[0].shape == (-1, expected.shape[1])


def test_a_damaged_bundle_is_refused_before_anything_is_registered(copied):
    (copied / "data/p/bundles/hrad" / CARD).write_text("{")
    with pytest.raises(SystemExit, match="damaged bundle"):
        main(["register"])
    assert versions(copied)[0] == []


def test_no_bundle_is_told(copied):
    shutil.rmtree(copied / "data")
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
    capsys.readouterr()
    main(["fetch", "models:/p-hrad@challenger", "served/hrad"])
    assert capsys.readouterr().out.endswith(f" 1, content {bundle_hash('served/hrad')[:12]}\n")
    assert bundle_hash("served/hrad") == bundle_hash("data/p/bundles/hrad")
    main(["fetch", "models:/p-hrad/1", "served/hrad"])
    assert not list(Path("served").glob("*.partial"))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("models:/p-hrad@champion", "has no alias 'champion'. Known: challenger"),
        ("models:/p-hrad/7", "p-hrad has no version 7"),
        ("models:/q-hrad@champion", "nothing is registered as q-hrad"),
        ("p-hrad", "names no registered model and no folder: say models:/NAME@ALIAS"),
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
    with pytest.raises(SystemExit, match="instead of 000000000000"):
        main(["fetch", "models:/p-hrad/1", "served/hrad"])
    assert not Path("served/hrad").exists()
