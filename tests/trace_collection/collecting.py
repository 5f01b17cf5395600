"""What tests of trace collection share: prompts, and finished folders read back."""

import collections
import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from trace_collection.collection import collect
from trace_collection.texts import TextTraceConfig

GAMMA = 5
TEXTS = TextTraceConfig(
    gamma_max=GAMMA, candidates=4, prompts=(0, 1, 3), max_new_tokens=24, layers=2, top=4, prompts_per_shard=2, threads=1
)
COUNTS = ("tokens", "rounds", "submitted", "passes", "accepted", "asked")
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


def kept_shares(reached_RG):
    """Of chains from every root, how likely each token is kept where all before it are."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(reached_RG / np.insert(reached_RG[:, :-1], 0, 1.0, axis=1))


def middle(limits: list, place: int, chance) -> float:
    """A uniform number in a place of a text: the middle of a stretch between what it is compared with there, arrays [roots,
    depth], drawn by its length."""
    met = {float(one[place - depth, depth]) for one in limits for depth in range(min(one.shape[1], place + 1))}
    ends = np.array(sorted({0.0, *(limit for limit in met if 0 < limit < 1), 1.0}))
    return float((ends[:-1] + ends[1:])[int(chance.categorical(torch.from_numpy(np.diff(ends))))] / 2)


def differing(totals, decodes):
    """Texts whose totals, counts exactly and seconds to rounding, are not those of the real controller's ``decodes``."""
    for place, real in enumerate(decodes):
        counts = [int(getattr(totals, f"{name}_X")[place]) for name in COUNTS]
        seconds = pytest.approx(real.seconds, rel=1e-9)
        if counts != [getattr(real, name) for name in COUNTS] or totals.seconds_X[place] != seconds:
            yield counts, real
