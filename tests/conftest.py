"""Environment of every test: few threads, no network, nothing written outside the test's folder."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import pytest
import torch

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with interruptions ignored


def pytest_collection_modifyitems(items):
    """Leave out what needs a CUDA device where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def template_db(tmp_path_factory):
    """An empty MLflow database: making its schema takes seconds, copying it does not."""
    from pipelines.tracking import new_client

    path = tmp_path_factory.mktemp("mlflow") / "template.db"
    new_client(f"sqlite:///{path}").search_experiments()
    return path
