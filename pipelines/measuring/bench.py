"""What a measuring stage works with: the machine, the pair, held-out prompts if any, and a log that outlives an interruption.

The log has a JSON line a block, which is measured once, after a fingerprint of everything the measurement depends on. One with
another fingerprint is discarded whole: its blocks are never mixed with new ones.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tqdm import tqdm

from pipelines.measuring.provenance import MEASURED_CODE, provenance, source_hash, versions
from pipelines.measuring.tables import Rows
from pipelines.outputs import digest
from pipelines.parameters import add_pair_arguments
from pipelines.places import PairLocation, place_of, read_device, read_facts, read_pair
from pipelines.prompt_table import Prompt, read_prompts
from runtime import ModelPair
from runtime.causal_model import CausalLanguageModel
from runtime.eagle3.drafter import Eagle3Drafter


class MeasurementLog:
    """The log at ``path``; ``resumed`` counts the blocks an earlier run left."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path = path
        self._blocks = _kept(path, fingerprint)
        self.resumed = len(self._blocks)
        path.parent.mkdir(parents=True, exist_ok=True)
        records = [{"fingerprint": fingerprint}, *({"key": key, "rows": rows} for key, rows in self._blocks.items())]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))

    def __contains__(self, key: str) -> bool:
        return key in self._blocks

    def once(self, key: str, measure: Callable[[], Rows]) -> Rows:
        """The rows of block ``key``: those of an earlier run, or measured now and kept."""
        if key not in self._blocks:
            rows = measure()
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "rows": rows}) + "\n")
            self._blocks[key] = rows
        return self._blocks[key]

    def remove(self) -> None:
        """Forget everything: the measurement is complete and written elsewhere."""
        self.path.unlink()


def _kept(path: Path, fingerprint: str) -> dict[str, Rows]:
    """Blocks of all lines but a last one that was cut off while it was written; none of another fingerprint."""
    lines = path.read_text().split("\n") if path.is_file() else []
    header, *blocks = [json.loads(line) for line in lines[:-1] if line] or [{}]
    return {one["key"]: one["rows"] for one in blocks} if header.get("fingerprint") == fingerprint else {}


@dataclass
class Blocks:
    """Blocks of a ``log``. ``bar`` counts steps, of which a block has some."""

    log: MeasurementLog
    bar: tqdm

    def planned(self, steps: int) -> None:
        """So many more are at hand: the bar's total grows where it was less."""
        self.bar.total = max(self.bar.total or 0, self.bar.n + steps)

    def once(self, key: str, steps: int, measure: Callable[[], Rows]) -> Rows:
        """Rows of block ``key``. ``measure`` moves the bar itself; a block that an earlier run left moves it by ``steps``."""
        known = key in self.log
        rows = self.log.once(key, measure)
        self.bar.update(steps if known else 0)
        return rows


@dataclass(frozen=True)
class Bench:
    """Machine, pair and prompts that a measuring stage works with. ``folder`` is named after the device; ``prompts`` are those
    of each split. Models of the ``pair`` are whole: Hugging Face's own forward is among what is measured."""

    folder: Path
    pair: ModelPair
    location: PairLocation
    prompts: dict[str, list[Prompt]]
    log: MeasurementLog
    inputs: dict[str, Any]
    device: dict[str, Any]

    def origin(self, pair: str) -> dict[str, Any]:
        """Provenance of what was measured for the pair of that name: inputs, code, machine, threads, dtypes, forwards."""
        models = {
            name: {"dtype": str(model.dtype).removeprefix("torch."), "forward": model.forward}
            for name, model in self.pair.models.items()
            if isinstance(model, CausalLanguageModel | Eagle3Drafter)
        }
        place = {"pair": pair, "threads": torch.get_num_threads(), "models": models}
        return provenance(self.device) | self.inputs | place


def add_bench_arguments(parser: argparse.ArgumentParser, prompts: bool = True) -> None:
    """The inputs that ``open_bench`` reads; ``prompts``: those too, and recorded texts of them."""
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("pair_folder", type=Path, help="folder of the pair stage")
    if prompts:
        parser.add_argument("prompts", type=Path, help="folder or file of prompts")
        parser.add_argument("--texts", type=place_of, help="folder of text traces: their prompts are timed first")


def open_bench(
    args: argparse.Namespace,
    config: Any,
    counts: Mapping[str, int | None],
    hashes: Mapping[str, str | None] = MappingProxyType({}),
) -> Bench:
    """Set the threads of ``config``, a dataclass of the stage's parameters, read the prompts (``counts`` of each split, all where
    it is ``None``; empty: none), load the pair and take up an interrupted log.

    The log's fingerprint covers the parameters, the pair, the prompts, the code, the machine and ``hashes`` of others.
    `ValueError` if a split has no prompts."""
    torch.set_num_threads(config.threads)
    device = read_device(args.device)
    prompts = {split: read_prompts(args.prompts, split, count) for split, count in counts.items()}
    for split, some in prompts.items():
        if not some:
            raise ValueError(f"{args.prompts} has no {split} prompts. Draw some (section prompts of the parameters).")
    timed = {split: [prompt.tokens for prompt in some] for split, some in prompts.items()}
    inputs = {
        "parameters": asdict(config),
        "pair_sha256": digest(read_facts(args.pair_folder)),
        **hashes,
        **({"prompts_sha256": digest(timed)} if timed else {}),
        "code_sha256": source_hash(MEASURED_CODE),
    }
    folder = args.output / device["slug"]
    log = MeasurementLog(folder / "partial.jsonl", digest({**inputs, "device": device, "versions": versions()}))
    if log.resumed:
        print(f"{folder}: going on after {log.resumed} blocks of an interrupted run")
    location = read_pair(args.pair_folder)
    return Bench(folder, ModelPair.load(**location.models, whole=True), location, prompts, log, inputs, device)


def mix_of(test: Iterable[Prompt]) -> dict[str, float]:
    """Documents by slice of ``test`` prompts: what a slice weighs in the mix."""
    counts = Counter(name for _, name in {(prompt.document, prompt.slice) for prompt in test})
    return {name: float(counts[name]) for name in sorted(counts)}


def allocated(prompts: Sequence[Prompt], mix: Mapping[str, float], count: int, least: int = 0) -> list[Prompt]:
    """``count`` of ``prompts`` in turns of slices: first ``least`` of each, then always of the one that is farthest behind its
    share. A slice's prompts keep their order; slices that ``mix`` lacks are left out.

    Numbers in proportion to weights make the error of a weighted sum nearly the least. Source: proportional allocation
    (Cochran, Sampling Techniques, 1977, section 5.5), rounded as by Webster; a larger ``count`` only adds prompts."""
    queues = {name: [prompt for prompt in prompts if prompt.slice == name] for name in sorted(mix)}
    taken = dict.fromkeys(queues, 0)
    chosen: list[Prompt] = []
    while len(chosen) < count and (left := [name for name in taken if taken[name] < len(queues[name])]):
        turn = min(left, key=lambda name: (taken[name] >= least, (taken[name] + 0.5) / mix[name]))
        chosen.append(queues[turn][taken[turn]])
        taken[turn] += 1
    return chosen
