"""Collection of a trace: jobs in shards, the record of what was captured, checks before anything is written.

Interrupted at any moment and started again, by however many workers, a collection ends in the same bytes: each prompt has its own
random streams, the thread count is fixed, shards are written whole, and none holds a time or a host name.
"""

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import torch
import transformers

from predictors.bundle import CaptureContract, ServingRange
from predictors.config import Checked, Count, Whole
from predictors.sampling import SamplingSettings
from predictors.schema import MANIFEST, SPLITS, Prompt
from runtime import ModelPair, Randomness
from runtime.causal_model import CausalLanguageModel
from runtime.device import own_settings
from runtime.eagle3.drafter import Eagle3Drafter
from runtime.identity import pair_identity
from runtime.invariant import noise_of
from trace_collection import shards
from trace_collection.shards import Rows
from trace_collection.trajectories import Trajectory, continuations, taps_of

Job = tuple[SamplingSettings, Prompt]
Progress = Callable[[Iterable[Any], int], Iterable[Any]]
Over = Callable[[Callable[[Any, Any], Any], Iterable[Any]], Iterator[tuple[Any, Any]]]


def first_of_splits(prompts: Sequence[Prompt], counts: Sequence[int]) -> list[Prompt]:
    """Take the first so many prompts of each of `SPLITS`, whose prefixes alternate slices and documents. A stride would keep step
    with them: every third of three alternating slices is one slice."""
    by_split = ([one for one in prompts if one.split == split] for split in SPLITS)
    return [prompt for some, count in zip(by_split, counts, strict=True) for prompt in some[:count]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionConfig(Checked):
    """Section of the parameters of any trace: a shard holds the rows of ``prompts_per_shard`` prompts."""

    prompts_per_shard: Count = 16
    threads: Count = 2
    seed: Whole = 0


class Collector(ABC):
    """Collects a trace of ``pair``: defines its table, and makes the rows of jobs.

    ``config`` is its section of the parameters, ``jobs`` are all it will collect; ``reach`` tokens after a prompt must fit the
    models. ``layers`` of the target are stored; those and what the draft reads are tapped (``taps``).
    """

    name: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]
    version: ClassVar[int]
    new_tokens: int
    reach: int
    rows_per_job: int
    layers: tuple[int, ...] = ()
    drafts: ClassVar[bool] = True  # whether it takes a draft model
    keeps_said: ClassVar[bool] = False  # whether its rows need the outputs of the target as it drew the texts

    def __init__(self, pair: ModelPair, config: Any, prompts: Sequence[Prompt]) -> None:
        if self.drafts and pair.draft is None:
            raise ValueError(f"{self.name.removesuffix('s')} traces need a draft model; this pair has none.")
        self.pair, self.config = pair, config
        self.jobs: list[Job] = [(settings, prompt) for prompt in prompts for settings in config.settings]

    @property
    def sizes(self) -> dict[str, int]:
        """Lengths of the list columns, by their word in ``columns``; by default there are none."""
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of the manifest besides parameters, number formats and contract."""
        return {}

    def rows(self, jobs: Sequence[Job]) -> Iterator[Rows]:
        """Yield the rows of every one of some jobs that share a shard, with `PLACE_COLUMNS` if there are any."""
        for (settings, prompt), columns in zip(jobs, self.traced(jobs), strict=True):
            place = {name: getattr(prompt, name) for name in ("document", "slice", "split")}
            place |= {"prompt_id": prompt.id, "batch_size": 1, **dataclasses.asdict(settings)}
            yield place | columns if columns else {}

    @abstractmethod
    def traced(self, jobs: Sequence[Job]) -> Iterator[Rows]:
        """Yield the rows of every one of some jobs, without `PLACE_COLUMNS`."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target that are tapped: those stored, and those that the draft reads."""
        return taps_of(self.pair, self.layers)

    def chance(self, job: Job) -> Randomness:
        """Seed a job's own random streams."""
        settings, prompt = job
        return Randomness(seed_of(self.config.seed, self.name, prompt.id, settings))

    def texts(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Trajectory]]:
        """Draw the target's continuation of every job, with the target's outputs where these are kept."""
        layers = self.taps if self.keeps_said else ()
        drawn = []
        for job in jobs:
            chance = self.chance(job)
            noise = noise_of(chance) if job[0].invariant else None
            drawn.append(Trajectory(job[1].tokens, job[0], chance, [] if self.keeps_said else None, noise))
        yield from zip(jobs, continuations(self.pair.target, drawn, self.new_tokens, layers), strict=True)


@dataclasses.dataclass(frozen=True)
class Collection:
    """Plan of a collection, without the models: its ``shards`` by name, at most so many ``rows``, ``facts`` of the manifest."""

    name: str
    schema: pa.Schema
    shards: dict[str, list[Job]]
    rows: int
    facts: dict[str, Any]


def described(collector: Collector, code: str) -> Collection:
    """Plan what ``collector`` will write; `ValueError` if a prompt does not fit the context. ``code``: as in `collect`."""
    require_context(collector)
    contract, config = capture_contract(collector), dataclasses.asdict(collector.config)
    jobs, size, formats = collector.jobs, collector.config.prompts_per_shard, dtypes(collector.pair)
    inputs = {  # all that the rows follow from; versions of libraries do not throw half a collection away
        "schema_version": collector.version,
        "code": code,
        "identity": dataclasses.asdict(contract.identity),
        "jobs": [
            (dataclasses.astuple(settings), prompt.id, list(prompt.tokens), prompt.split, prompt.document, prompt.slice)
            for settings, prompt in jobs
        ],
        "eos_tokens": sorted(collector.pair.target.eos_tokens),
        "config": config,
        "dtypes": formats,
    }
    fingerprint = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    schema = shards.trace_schema(collector.columns, collector.sizes, collector.version, fingerprint, contract.to_json())
    named = {shards.shard_name(start // size): jobs[start : start + size] for start in range(0, len(jobs), size)}
    facts = {
        "of": collector.name,
        "schema_version": collector.version,
        "fingerprint": fingerprint,
        "contract": contract.to_json(),
        "parameters": config,
        "dtypes": formats,
        **collector.facts,
    }
    return Collection(collector.name, schema, named, len(jobs) * collector.rows_per_job, facts)


def shard_rows(collector: Collector, shard: tuple[str, Sequence[Job]]) -> Iterator[Rows]:
    """Yield the rows of every job of a shard, which is given by name and jobs: a worker's task."""
    torch.set_num_threads(collector.config.threads)
    with own_settings(model.device for model in collector.pair.models.values()):
        yield from collector.rows(shard[1])


def collect(over: Over, folder: Path, progress: Progress, max_gigabytes: float, code: str = "") -> dict[str, int]:
    """Write the shards and the manifest of a trace into ``folder``; finished shards of the same collection are kept.

    ``over(do, tasks)`` yields every task with ``do(collector, task)``, in any order and wherever a collector is; ``progress``
    wraps the jobs for a bar. The traces of a pair, which lie next to ``folder``, may need ``max_gigabytes`` together.
    ``code``: hash of the collecting code; shards of other code are collected again. Returns how many ``shards`` and ``rows``
    there are, and how many shards were ``kept`` from an earlier run. `ValueError` if a prompt does not fit the context, the disk
    does not suffice or ``folder`` holds traces of another kind, before anything is written or removed.
    """
    ((_, made),) = over(described, [code])
    shards.require_kind(folder, made.name)
    shards.require_disk(folder, made.name, made.rows, shards.bytes_of(made.schema), max_gigabytes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    fingerprint = made.facts["fingerprint"]
    todo = [(name, jobs) for name, jobs in made.shards.items() if not shards.finished(folder / name, fingerprint)]
    for _ in progress(_written(over, todo, folder, made.schema), sum(len(jobs) for _, jobs in todo)):
        pass
    written = shards.write_manifest(folder, list(made.shards), made.facts)
    return {"shards": len(made.shards), "kept": len(made.shards) - len(todo), "rows": written}


def _written(over: Over, todo: Sequence[Any], folder: Path, schema: pa.Schema) -> Iterator[Rows]:
    """Yield the rows of every job; write a shard after its last one."""
    for (name, _), made in over(shard_rows, todo):
        rows = []
        for one in made:
            rows.append(one)
            yield one
        shards.write_shard(folder / name, rows, schema)


def require_context(collector: Collector) -> None:
    """Raise `ValueError` if a prompt and what is collected after it exceed the pair's context."""
    if not collector.jobs:
        raise ValueError(
            f"traces.{collector.name} has no prompts to collect from. Raise prompts.train, validation and test, or run the "
            "prompts stage."
        )
    models = [model for model in (collector.pair.target, collector.pair.draft) if model is not None]
    limit = min(model.context_limit for model in models)
    longest = max((prompt for _, prompt in collector.jobs), key=lambda prompt: len(prompt.tokens))
    if len(longest.tokens) + collector.reach > limit:
        raise ValueError(
            f"prompt {longest.id} has {len(longest.tokens)} tokens; with {collector.reach} more of traces.{collector.name} it "
            f"does not fit the pair's context of {limit}. Lower prompts.max_tokens or prompts.longest."
        )


def capture_contract(collector: Collector) -> CaptureContract:
    """Record what features are captured under: the pair, after the prompts and in texts of the collector's length."""
    lengths = [len(prompt.tokens) for _, prompt in collector.jobs]
    settings: list[SamplingSettings] = list(dict.fromkeys(settings for settings, _ in collector.jobs))
    serving = ServingRange(
        dtype=dtypes(collector.pair)["target"],
        settings=tuple(item.numbers for item in settings),
        min_context=min(lengths) + 1,
        max_context=max(lengths) + collector.new_tokens,
    )
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    return CaptureContract(pair_identity(collector.pair, collector.layers), serving, provenance=versions)


def models_of(pair: ModelPair) -> dict[str, CausalLanguageModel]:
    """Return the pair's Hugging Face models, by ``target`` and ``draft``."""
    return {name: one for name, one in vars(pair).items() if isinstance(one, CausalLanguageModel)}


def dtypes(pair: ModelPair) -> dict[str, str]:
    """Return each model's number format, on which what a draft proposes depends, too."""
    return {name: str(one.dtype).removeprefix("torch.") for name, one in models_of(pair).items()}


def last_layers(model: Any, count: int, key: str) -> tuple[int, ...]:
    """Number the last ``count`` hidden states; `ValueError`, which names the parameter ``key``, if the model has fewer."""
    if count > model.num_layers + 1:
        kind = type(getattr(model, "model", model)).__name__
        raise ValueError(f"{key} is {count}, and {kind} has {model.num_layers + 1} hidden states: lower {key}.")
    return tuple(range(model.num_layers - count + 1, model.num_layers + 1))


def hidden_size(model: Any) -> int:
    """Return the size of a model's hidden states."""
    held = model.checkpoint if isinstance(model, Eagle3Drafter) else model.model
    return int(held.config.get_text_config().hidden_size)


def seed_of(seed: int, trace: str, prompt_id: str, settings: SamplingSettings) -> int:
    """Derive the seed of a prompt's own random streams in a trace."""
    key = hashlib.sha256(f"{seed}/{trace}/{prompt_id}/{dataclasses.astuple(settings)}".encode()).digest()
    return int.from_bytes(key[:8], "little") >> 1
