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

SERVED = "test_champions.py", "test_release.py", "test_registered_files.py"  # by one MLflow server, so in one process
LONGEST = (
    *(*SERVED, "test_promote.py", "test_families.py", "test_stopping.py", "test_scale.py"),
    *("test_texts.py", "test_trial.py", "test_drift_comparison.py", "test_measure.py", "test_report.py"),
    *("test_branch_exactness.py", "test_drafting.py", "test_verifiers_exact.py"),
    *("test_branch_overlap.py", "test_controller_contract.py"),
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests go to processes by file, as they share what is slow to make; those of `SERVED` as if they were one."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "SERVED" if file.endswith(SERVED) else file

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items):
    """The longest files first, so that no process ends long before the others; without what needs a CUDA device where there is
    none."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def template_db(tmp_path_factory):
    """An empty MLflow database: making its schema takes seconds, copying it does not."""
    from pipelines.registry.tracking import new_client

    path = tmp_path_factory.mktemp("mlflow") / "template.db"
    new_client(f"sqlite:///{path}").search_experiments()
    return path
