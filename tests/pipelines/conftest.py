"""A small corpus and tiny models, so that the stages run in seconds."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from pipelines.builtin import corpus
from pipelines.builtin.corpus import Document
from pipelines.builtin.language_model import Shape, new_model
from pipelines.builtin.tokenizer import train_tokenizer
from pipelines.pair import run

TINY = {"shape": {"hidden": 16, "layers": 1, "heads": 2, "feed_forward": 24}, "training": {"steps": 3, "context": 32}}
BUILTIN = {
    "seed": 0,
    "threads": 1,
    "vocabulary": 300,
    "held_out": 0.14,
    "target": TINY,
    "draft": TINY,
    "inflated": {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 4, "head_dim": 8, "feed_forward": 32},
}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    return corpus.builtin_documents()


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
