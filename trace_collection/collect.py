"""Collect round traces over prompts, one row per round (specification 4.2): of plain speculative decoding at γ_max, or of
branch-parallel decoding that retains all γ_max tokens of every branch - always, or in the rounds between those of a policy.

Interrupted at any moment and started again, a collection ends in the same bytes: each prompt has its own random streams, the
thread count is fixed, shards are written whole, and none holds a time or a host name.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from predictors.contract import CaptureContract, ServingRange
from predictors.controllers import Controller, build_controller
from predictors.sampling import SamplingSettings
from predictors.schema import MANIFEST, ROUND_TRACES_VERSION
from runtime import Decoder, ModelPair, Randomness, build_decoder
from runtime.branching.config import BranchConfig
from runtime.causal_model import CausalLanguageModel
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.identity import pair_identity
from runtime.verification import VERIFIERS
from trace_collection.probe import Probe
from trace_collection.rows import Prompt, collect_rows
from trace_collection.shards import finished, round_schema, shard_name, write_manifest, write_shard

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
Job = tuple[SamplingSettings, Prompt]
DRAFTING = ("chain", "branches")


@dataclass(frozen=True)
class TraceConfig:
    """How round traces are collected.

    ``gamma_max`` tokens are drafted every round, as a chain or as ``branches`` (``drafting``), of which at most ``k_max`` are
    grown; ``every`` n-th prompt is decoded; ``num_layers`` last hidden states of the target are stored (the last one after the
    final norm); ``max_gigabytes`` is the most disk the shards may need.
    """

    drafting: str = "chain"
    k_max: int = 6
    every: int = 1
    gamma_max: int = 8
    max_new_tokens: int = 48
    temperatures: tuple[float, ...] = (0.0,)
    top_k: int = 0
    top_p: float = 1.0
    verifier: str = "tokenwise"
    num_layers: int = 4
    prompts_per_shard: int = 64
    threads: int = 2
    seed: int = 0
    dtype: str = "auto"
    max_gigabytes: float = 4.0

    def __post_init__(self) -> None:
        if self.gamma_max < 1 or self.max_new_tokens < self.gamma_max + 2:
            raise ValueError(
                f"gamma_max must be >= 1 and max_new_tokens at least gamma_max + 2, got {self.gamma_max} and "
                f"{self.max_new_tokens}: shorter continuations hold no round that the budget does not cut."
            )
        if self.drafting not in DRAFTING:
            raise ValueError(f"unknown drafting {self.drafting!r}. Known: {', '.join(DRAFTING)}.")
        if self.every < 1 or self.k_max < 1:
            raise ValueError(f"every and k_max must be >= 1, got {self.every} and {self.k_max}.")
        if not self.temperatures:
            raise ValueError("temperatures is empty: name at least one.")

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature, self.top_k, self.top_p) for temperature in self.temperatures]


def collect(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    config: TraceConfig,
    folder: Path,
    progress: Progress,
    code: str = "",
    policy: Controller | None = None,
) -> dict[str, int]:
    """Write the shards and the manifest of a collection into ``folder``; finished shards of the same collection are kept.

    Parameters
    ----------
    pair
        Target and draft.
    prompts
        All splits; shards follow their order.
    progress
        Wraps the shards' work items for a progress bar.
    code
        Hash of the collecting code, and of the policy if there is one; shards of other code are collected again.
    policy
        Decides every other round of branch-parallel decoding; rows are those of the rounds between (`Probe`).

    Returns
    -------
    dict
        Number of ``shards``, and how many were ``kept`` from an earlier run.

    Raises
    ------
    ValueError
        If a prompt does not fit the context or the disk does not suffice - before anything is written or removed.
    """
    assert isinstance(pair.target, CausalLanguageModel)
    prompts = prompts[:: config.every]
    decoder = _decoder(pair, config, policy)
    _require_context(decoder.context_limit, prompts, config)
    torch.set_num_threads(config.threads)
    layers = tuple(range(pair.target.num_layers - config.num_layers + 1, pair.target.num_layers + 1))
    jobs = [(settings, prompt) for settings in config.settings for prompt in prompts]
    contract = _contract(pair, layers, prompts, config)
    state_size = _state_size(pair, layers)
    require_disk(folder, len(jobs) * config.max_new_tokens, state_size, config)
    fingerprint = _fingerprint(config, contract, _dtypes(pair), jobs, code)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    size = config.prompts_per_shard
    shards = {shard_name(start // size): jobs[start : start + size] for start in range(0, len(jobs), size)}
    todo = {name: part for name, part in shards.items() if not finished(folder / name, fingerprint)}
    schema = round_schema(config.gamma_max, state_size, fingerprint, contract.to_json())
    for name, rows in _collected(decoder, todo, config, layers, progress):
        write_shard(folder / name, rows, schema)
    write_manifest(folder, list(shards), {"fingerprint": fingerprint, **_facts(pair, config, layers, contract)})
    return {"shards": len(shards), "kept": len(shards) - len(todo)}


def _facts(pair: ModelPair, config: TraceConfig, layers: tuple[int, ...], contract: CaptureContract) -> dict[str, Any]:
    """What the manifest says of a collection."""
    hidden_size = _hidden_size(pair)
    return {
        "parameters": dataclasses.asdict(config),
        "gamma_max": config.gamma_max,
        "feature_layers": list(layers),
        "hidden_size": hidden_size,
        "embedding_size": _state_size(pair, layers) - len(layers) * hidden_size,
        "dtypes": _dtypes(pair),
        "contract": contract.to_json(),
    }


def _decoder(pair: ModelPair, config: TraceConfig, policy: Controller | None) -> Decoder:
    if config.drafting == "chain":
        if policy is not None:
            raise ValueError("a policy is probed in branch-parallel decoding: set traces' drafting to branches.")
        chain = {"kind": "chain", "gamma": config.gamma_max}
        return build_decoder(pair, {"method": "speculative", "drafter": chain, "verifier": config.verifier})
    controller = build_controller({"kind": "fixed"}) if policy is None else Probe(policy)
    branches = BranchConfig(gamma=config.gamma_max, k_max=config.k_max, overlap="none")
    return BranchParallelDecoder(pair, branches, VERIFIERS[config.verifier], controller)


def _collected(
    decoder: Decoder, shards: dict[str, list[Job]], config: TraceConfig, layers: Sequence[int], progress: Progress
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each shard's rows as soon as its last prompt is decoded."""
    work = [(name, job) for name, jobs in shards.items() for job in jobs]
    rows: list[dict[str, Any]] = []
    for index, (name, (settings, prompt)) in enumerate(progress(work, len(work))):
        randomness = Randomness(_seed(config.seed, prompt.id, settings))
        rows += collect_rows(decoder, prompt, settings, config.max_new_tokens, config.gamma_max, layers, randomness)
        if index + 1 == len(work) or work[index + 1][0] != name:
            yield name, rows
            rows = []


def require_disk(folder: Path, max_rows: int, state_size: int, config: TraceConfig) -> int:
    """Bytes the shards need at most (a round emits at least one token); `ValueError` if cap or disk is smaller."""
    bytes_per_row = 2 * state_size + 21 * config.gamma_max + 128
    need = max_rows * bytes_per_row
    parent = next(place for place in [folder, *folder.absolute().parents] if place.exists())
    free = shutil.disk_usage(parent).free
    print(f"round traces: at most {max_rows} rows of {bytes_per_row} bytes = {need / 1e6:.0f} MB", flush=True)
    for limit, what in ((config.max_gigabytes * 1e9, "traces.max_gigabytes allows"), (free, "the disk has free")):
        if need > limit:
            raise ValueError(
                f"round traces need up to {need / 1e9:.3g} GB and {what} only {limit / 1e9:.3g} GB. "
                "Collect fewer prompts, fewer layers or shorter continuations, or raise traces.max_gigabytes."
            )
    return need


def _require_context(limit: int, prompts: Sequence[Prompt], config: TraceConfig) -> None:
    if not prompts:
        raise ValueError("there are no prompts to collect from: run the prompts stage.")
    longest = max(prompts, key=lambda prompt: len(prompt.tokens))
    if len(longest.tokens) + config.max_new_tokens > limit:
        raise ValueError(
            f"prompt {longest.id} has {len(longest.tokens)} tokens; with traces.max_new_tokens={config.max_new_tokens} it does "
            f"not fit the pair's context of {limit}. Lower prompts.max_tokens or prompts.longest."
        )


def _contract(
    pair: ModelPair, layers: tuple[int, ...], prompts: Sequence[Prompt], config: TraceConfig
) -> CaptureContract:
    lengths = [len(prompt.tokens) for prompt in prompts]
    assert isinstance(pair.target, CausalLanguageModel)
    serving = ServingRange(
        dtype=_dtypes(pair)["target"],
        settings=tuple((item.temperature, float(item.top_k), item.top_p) for item in config.settings),
        min_context=min(lengths) + 1,
        max_context=max(lengths) + config.max_new_tokens,
    )
    return CaptureContract(pair_identity(pair, layers), serving, provenance=_versions())


def _dtypes(pair: ModelPair) -> dict[str, str]:
    """Each model's own: what a draft proposes depends on its number format too."""
    models = {"target": pair.target, "draft": pair.draft}
    return {
        name: str(model.dtype).removeprefix("torch.")
        for name, model in models.items()
        if isinstance(model, CausalLanguageModel)
    }


def _versions() -> dict[str, str]:
    import transformers

    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}


def _fingerprint(
    config: TraceConfig, contract: CaptureContract, dtypes: dict[str, str], jobs: list[Job], code: str
) -> str:
    inputs = {
        "schema_version": ROUND_TRACES_VERSION,
        "code": code,
        "versions": contract.provenance,
        "config": dataclasses.asdict(config),
        "identity": dataclasses.asdict(contract.identity),
        "dtypes": dtypes,
        "jobs": [
            (dataclasses.astuple(settings), prompt.id, list(prompt.tokens), prompt.split) for settings, prompt in jobs
        ],
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _seed(seed: int, prompt_id: str, settings: SamplingSettings) -> int:
    key = hashlib.sha256(f"{seed}/{prompt_id}/{dataclasses.astuple(settings)}".encode()).digest()
    return int.from_bytes(key[:8], "little") >> 1


def _hidden_size(pair: ModelPair) -> int:
    assert isinstance(pair.target, CausalLanguageModel)
    return int(pair.target.model.config.get_text_config().hidden_size)


def _state_size(pair: ModelPair, layers: tuple[int, ...]) -> int:
    return len(layers) * _hidden_size(pair) + len(pair.target.embedding(0))
