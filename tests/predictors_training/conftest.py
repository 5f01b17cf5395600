"""Synthetic texts, and a folder in which heads were fitted from them."""

import shutil
from pathlib import Path

import pytest

from predictors.training.labelling import ChainLabelConfig, label_chains, write_labels
from predictors.training.predictor import Materials
from tests.predictors.affine_profile import PROFILE
from tests.predictors_training.stages import GAMMA, PARAMETERS, fit, prepare, write_parameters
from tests.predictors_training.synthetic_texts import write_texts


@pytest.fixture(scope="session")
def traces(tmp_path_factory) -> Path:
    """A folder of traces with texts in it."""
    folder = tmp_path_factory.mktemp("traces")
    write_texts(folder / "texts")
    return folder


@pytest.fixture(scope="session")
def materials(tmp_path_factory, traces) -> Materials:
    """What a head is fitted from, labelled with γ = 4."""
    return labelled(traces, tmp_path_factory.mktemp("labels"))


def labelled(traces: Path, folder: Path) -> Materials:
    from predictors.training.tables import TextTable

    labels = label_chains(TextTable.read(traces / "texts"), ChainLabelConfig(GAMMA))
    write_labels(labels, folder / "chains.parquet")
    return Materials(traces / "texts", traces / "trees", traces / "guesses", folder, PROFILE)


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
        prepare(traces)
        for name in PARAMETERS["fit"]:
            fit(name, traces)
    return folder
