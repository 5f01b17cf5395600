"""What tests of trace collection share: prompts, and finished folders read back."""

import collections
import json
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import torch

from trace_collection.collection import collect

Prompt = collections.namedtuple("Prompt", "id document slice split tokens")


def random_prompts(lengths, splits) -> list[Prompt]:
    """A prompt of random tokens for each length, each of its own document."""
    generator = torch.Generator().manual_seed(1)
    return [
        Prompt(f"p{index}", f"d{index}", "code", split, torch.randint(32, (length,), generator=generator).tolist())
        for index, (length, split) in enumerate(zip(lengths, splits, strict=False))
    ]


def quiet(work, total):
    """No progress bar."""
    return work


def read(folder: Path) -> list[dict]:
    """All rows of a finished folder."""
    names = [shard["name"] for shard in json.loads((folder / "manifest.json").read_text())["shards"]]
    return [row for name in names for row in pq.read_table(folder / name).to_pylist()]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def gather(collector, folder: Path, progress=quiet, max_gigabytes: float = 1.0, code: str = "") -> dict[str, int]:
    """Collect into ``folder``, in one thread."""
    return collect(partial(here, collector), folder, progress, max_gigabytes, code)


def here(collector, do, tasks):
    """Tasks done in turn."""
    return ((task, do(collector, task)) for task in tasks)


def interrupted(after: int):
    """Progress that is interrupted before the job after so many."""

    def progress(work, total):
        for index, item in enumerate(work):
            if index == after:
                raise KeyboardInterrupt
            yield item

    return progress
