"""Collect round traces over prompts, one row per round (specification 4.2): of plain speculative decoding at γ_max, or of
branch-parallel decoding that retains all γ_max tokens of every branch - always, or in the rounds between those of a policy.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from predictors.contract import CaptureContract
from predictors.controllers import Controller, build_controller
from predictors.sampling import SamplingSettings
from predictors.schema import ROUND_COLUMNS, ROUND_TRACES_VERSION
from runtime import Decoder, ModelPair, Randomness, build_decoder
from runtime.branching.config import BranchConfig
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.verification import VERIFIERS
from trace_collection.collection import (
    Collection,
    Job,
    Progress,
    Rows,
    capture_contract,
    dtypes,
    hidden_size,
    last_layers,
    require_context,
    require_disk,
    seed_of,
)
from trace_collection.probe import Probe
from trace_collection.rows import Prompt, collect_rows, one_in

DRAFTING = ("chain", "branches")


@dataclass(frozen=True)
class TraceConfig:
    """How round traces are collected.

    ``gamma_max`` tokens are drafted every round, as a chain or as ``branches`` (``drafting``), of which at most ``k_max`` are
    grown; one in ``every`` prompts is decoded; ``num_layers`` last hidden states of the target are stored (the last one after the
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
    prompts = one_in(config.every, prompts)
    decoder = _decoder(pair, config, policy)
    require_context(decoder.context_limit, prompts, config.max_new_tokens, "traces.max_new_tokens")
    torch.set_num_threads(config.threads)
    layers = last_layers(pair.target, config.num_layers)
    jobs = [(settings, prompt) for settings in config.settings for prompt in prompts]
    contract = capture_contract(pair, layers, prompts, config.settings, config.max_new_tokens)
    collection = _collection(pair, config, layers, contract)
    bytes_per_row = 2 * collection.sizes["state"] + 21 * config.gamma_max + 128
    max_rows = len(jobs) * config.max_new_tokens  # a round emits at least one token
    require_disk(folder, "round traces", max_rows, bytes_per_row, config.max_gigabytes, "traces")

    def rows_of(job: Job) -> Rows:
        settings, prompt = job
        randomness = Randomness(seed_of(config.seed, prompt.id, settings))
        return collect_rows(decoder, prompt, settings, config.max_new_tokens, config.gamma_max, layers, randomness)

    return collection.write(folder, jobs, rows_of, progress, code)


def _collection(pair: ModelPair, config: TraceConfig, layers: Sequence[int], contract: CaptureContract) -> Collection:
    """Columns, and what the manifest says, of round traces whose states are the target's ``layers`` and an embedding."""
    size, embedding_size = hidden_size(pair.target), len(pair.target.embedding(0))
    return Collection(
        ROUND_COLUMNS,
        {"array": config.gamma_max, "state": len(layers) * size + embedding_size},
        ROUND_TRACES_VERSION,
        contract,
        inputs={"config": dataclasses.asdict(config), "dtypes": dtypes(pair)},
        facts={
            "parameters": dataclasses.asdict(config),
            "gamma_max": config.gamma_max,
            "feature_layers": list(layers),
            "hidden_size": size,
            "embedding_size": embedding_size,
            "dtypes": dtypes(pair),
        },
        prompts_per_shard=config.prompts_per_shard,
    )


def _decoder(pair: ModelPair, config: TraceConfig, policy: Controller | None) -> Decoder:
    if config.drafting == "chain":
        if policy is not None:
            raise ValueError("a policy is probed in branch-parallel decoding: set traces' drafting to branches.")
        chain = {"kind": "chain", "gamma": config.gamma_max}
        return build_decoder(pair, {"method": "speculative", "drafter": chain, "verifier": config.verifier})
    controller = build_controller({"kind": "fixed"}) if policy is None else Probe(policy)
    branches = BranchConfig(gamma=config.gamma_max, k_max=config.k_max, overlap="none")
    return BranchParallelDecoder(pair, branches, VERIFIERS[config.verifier], controller)
