"""What all collections share: jobs in shards, the record of what was captured, checks before anything is written.

Interrupted at any moment and started again, a collection ends in the same bytes: each prompt has its own random streams, the
thread count is fixed, shards are written whole, and none holds a time or a host name.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from predictors.contract import CaptureContract, ServingRange
from predictors.sampling import SamplingSettings
from predictors.schema import MANIFEST
from runtime import ModelPair
from runtime.causal_model import CausalLanguageModel
from runtime.identity import pair_identity
from trace_collection.rows import Prompt
from trace_collection.shards import finished, shard_name, trace_schema, write_manifest, write_shard

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
Job = tuple[SamplingSettings, Prompt]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Collection:
    """A folder of shards of one schema.

    ``columns`` and ``sizes`` make the schema (`trace_schema`), ``version`` is its number; ``inputs`` are what the rows follow
    from besides code and the contract's identity, number formats among them; ``facts`` go into the manifest.
    """

    columns: dict[str, str]
    sizes: dict[str, int]
    version: int
    contract: CaptureContract
    inputs: dict[str, Any]
    facts: dict[str, Any]
    prompts_per_shard: int

    def write(
        self, folder: Path, jobs: Sequence[Job], rows_of: Callable[[Job], Rows], progress: Progress, code: str
    ) -> dict[str, int]:
        """Collect the rows of ``jobs`` into ``folder``; finished shards of the same collection are kept.

        Returns
        -------
        dict
            Number of ``shards``, how many were ``kept`` from an earlier run, and of ``rows``.
        """
        fingerprint = self._fingerprint(jobs, code)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        size = self.prompts_per_shard
        shards = {shard_name(start // size): jobs[start : start + size] for start in range(0, len(jobs), size)}
        todo = {name: part for name, part in shards.items() if not finished(folder / name, fingerprint)}
        schema = trace_schema(self.columns, self.sizes, self.version, fingerprint, self.contract.to_json())
        work = [(name, job) for name, part in todo.items() for job in part]
        rows: Rows = []
        for index, (name, job) in enumerate(progress(work, len(work))):
            rows += rows_of(job)
            if index + 1 == len(work) or work[index + 1][0] != name:
                write_shard(folder / name, rows, schema)
                rows = []
        facts = {"schema_version": self.version, "fingerprint": fingerprint, "contract": self.contract.to_json()}
        rows_written = write_manifest(folder, list(shards), facts | self.facts)
        return {"shards": len(shards), "kept": len(shards) - len(todo), "rows": rows_written}

    def _fingerprint(self, jobs: Sequence[Job], code: str) -> str:
        """Of everything the rows follow from. Number formats stand in ``inputs``; library versions are provenance and left out:
        a newer one does not throw half a collection away."""
        inputs = {
            "schema_version": self.version,
            "code": code,
            "identity": dataclasses.asdict(self.contract.identity),
            "jobs": [
                (dataclasses.astuple(settings), prompt.id, list(prompt.tokens), prompt.split)
                for settings, prompt in jobs
            ],
            **self.inputs,
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def require_disk(folder: Path, what: str, max_rows: int, bytes_per_row: int, max_gigabytes: float, key: str) -> int:
    """Bytes the shards need at most; `ValueError` if the cap ``max_gigabytes`` of parameters ``key``, or the disk, is smaller."""
    need = max_rows * bytes_per_row
    parent = next(place for place in [folder, *folder.absolute().parents] if place.exists())
    free = shutil.disk_usage(parent).free
    print(f"{what}: at most {max_rows} rows of {bytes_per_row} bytes = {need / 1e6:.0f} MB", flush=True)
    for limit, who in ((max_gigabytes * 1e9, f"{key}.max_gigabytes allows"), (free, "the disk has free")):
        if need > limit:
            raise ValueError(
                f"{what} need up to {need / 1e9:.3g} GB and {who} only {limit / 1e9:.3g} GB. "
                f"Collect fewer prompts, fewer layers or shorter continuations, or raise {key}.max_gigabytes."
            )
    return need


def require_context(limit: int, prompts: Sequence[Prompt], tokens: int, key: str) -> None:
    """`ValueError` if a prompt and ``tokens`` behind it, which parameter ``key`` asks for, exceed the pair's context."""
    if not prompts:
        raise ValueError("there are no prompts to collect from: run the prompts stage.")
    longest = max(prompts, key=lambda prompt: len(prompt.tokens))
    if len(longest.tokens) + tokens > limit:
        raise ValueError(
            f"prompt {longest.id} has {len(longest.tokens)} tokens; with {key}={tokens} it does "
            f"not fit the pair's context of {limit}. Lower prompts.max_tokens or prompts.longest."
        )


def capture_contract(
    pair: ModelPair, layers: tuple[int, ...], prompts: Sequence[Prompt], settings: Sequence[SamplingSettings], new: int
) -> CaptureContract:
    """The record of features captured behind ``prompts`` and up to ``new`` tokens more."""
    lengths = [len(prompt.tokens) for prompt in prompts]
    serving = ServingRange(
        dtype=dtypes(pair)["target"],
        settings=tuple((item.temperature, float(item.top_k), item.top_p) for item in settings),
        min_context=min(lengths) + 1,
        max_context=max(lengths) + new,
    )
    return CaptureContract(pair_identity(pair, layers), serving, provenance=_versions())


def dtypes(pair: ModelPair) -> dict[str, str]:
    """Each model's own: what a draft proposes depends on its number format too."""
    models = {"target": pair.target, "draft": pair.draft}
    return {
        name: str(model.dtype).removeprefix("torch.")
        for name, model in models.items()
        if isinstance(model, CausalLanguageModel)
    }


def last_layers(model: Any, count: int) -> tuple[int, ...]:
    """Numbers of the last ``count`` hidden states."""
    assert isinstance(model, CausalLanguageModel)
    return tuple(range(model.num_layers - count + 1, model.num_layers + 1))


def hidden_size(model: Any) -> int:
    """Size of a model's hidden states."""
    assert isinstance(model, CausalLanguageModel)
    return int(model.model.config.get_text_config().hidden_size)


def seed_of(seed: int, prompt_id: str, settings: SamplingSettings) -> int:
    """The seed of a prompt's own random streams."""
    key = hashlib.sha256(f"{seed}/{prompt_id}/{dataclasses.astuple(settings)}".encode()).digest()
    return int.from_bytes(key[:8], "little") >> 1


def _versions() -> dict[str, str]:
    import transformers

    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
