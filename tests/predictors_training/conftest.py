"""Synthetic traces, labels, and a folder in which all stages ran."""

import shutil
from pathlib import Path

import pytest

from tests.predictors_training.synthetic import make_labels, run_stages, write_parameters, write_traces


@pytest.fixture(scope="session")
def traces(tmp_path_factory) -> Path:
    return write_traces(tmp_path_factory.mktemp("traces") / "rounds")


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    return make_labels(tmp_path_factory.mktemp("labels"))


@pytest.fixture
def workspace(tmp_path, monkeypatch, template_db) -> Path:
    """A current folder with params.yaml and an empty tracking database."""
    monkeypatch.chdir(tmp_path)
    # Absolute, because MLflow keeps one store per URI and process, and these tests change folders.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    shutil.copy(template_db, tmp_path / "mlflow.db")
    write_parameters({})
    return tmp_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory, traces, template_db) -> Path:
    """A folder in which all stages ran; read it, or copy it to change it."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        shutil.copy(template_db, folder / "mlflow.db")
        write_parameters({})
        run_stages(traces)
    return folder
