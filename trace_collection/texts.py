"""Collect text traces: along the target's own text, what the draft says at every place and beside it.

    trajectory   a continuation under the sampling setting, decoded once (any lossless decoder: its law is the target's)
    along it     one pass of either model; the ratios of their laws at the text's tokens say what a verifier accepts of any draft
                 from any place (`predictors.replay.acceptance`)
    beside it    at every place a token that a tokenwise verifier would reject there, x ~ [q - p]_+, and a free rollout behind it:
                 what a draft that went wrong there looks like to a controller

A policy that stops elsewhere than the collected decoder did starts its rounds at other places, and they are all here.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from predictors.sampling import SamplingSettings
from predictors.schema import TEXT_COLUMNS, TEXT_TRACES_VERSION
from predictors.stopping.features import StopSpec
from runtime import Decoder, ModelPair, Randomness, build_decoder
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
from trace_collection.roots import TRAJECTORY
from trace_collection.rows import Prompt, place_columns
from trace_collection.text_tracer import Extent, TextTracer

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TextTraceConfig:
    """How text traces are collected.

    Rollouts of up to ``gamma_max`` tokens; hits and masses of up to ``candidates`` tokens; the ``top`` likeliest tokens'
    probabilities; the ``layers`` last hidden states of the target and ``draft_layers`` of the draft; ``prompts``: most of the
    splits train, validation and test; ``edit_prompts``: most of the edits there.
    """

    gamma_max: int = 12
    candidates: int = 8
    prompts: tuple[int, ...] = (180, 54, 72)
    edit_prompts: tuple[int, ...] = (0, 0, 0)
    max_new_tokens: int = 48
    temperatures: tuple[float, ...] = (0.0, 1.0)
    top_k: int = 0
    top_p: float = 1.0
    top: int = 10
    layers: int = 4
    draft_layers: int = 1
    prompts_per_shard: int = 16
    threads: int = 2
    seed: int = 0
    max_gigabytes: float = 0.5

    def __post_init__(self) -> None:
        for name in ("gamma_max", "candidates", "top", "layers", "draft_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if self.max_new_tokens < 3:
            raise ValueError(f"max_new_tokens must be >= 3, got {self.max_new_tokens}: shorter texts hold no round.")
        if len(self.prompts) != len(SPLITS) or min(self.prompts) < 1:
            raise ValueError(f"prompts must be three numbers >= 1, for {', '.join(SPLITS)}, got {list(self.prompts)}.")
        if len(self.edit_prompts) != len(SPLITS) or min(self.edit_prompts) < 0:
            got = list(self.edit_prompts)
            raise ValueError(f"edit_prompts must be three numbers >= 0, for {', '.join(SPLITS)}, got {got}.")
        if not self.temperatures:
            raise ValueError("temperatures is empty: name at least one.")

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature, self.top_k, self.top_p) for temperature in self.temperatures]


def collect_texts(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    config: TextTraceConfig,
    folder: Path,
    progress: Progress,
    code: str = "",
    edits: Sequence[Prompt] = (),
) -> dict[str, int]:
    """Write the shards and the manifest of text traces into ``folder``; arguments and result as `collect`'s, and ``edits``:
    prompts of slice `edit`, which are counted by themselves."""
    if pair.draft is None:
        raise ValueError("text traces need a draft model; this pair has none.")
    torch.set_num_threads(config.threads)
    chosen = [*_first(prompts, config.prompts), *_first(edits, config.edit_prompts)]
    decoder = build_decoder(pair, TRAJECTORY)
    require_context(decoder.context_limit, chosen, config.max_new_tokens, "traces.texts.max_new_tokens")
    tracer = TextTracer(pair, _extent(pair, config))
    collection = _collection(pair, config, tracer.extent, chosen)
    jobs = [(settings, prompt) for settings in config.settings for prompt in chosen]
    sizes = collection.sizes
    numbers = 8 * sizes["slots"] + sizes["tops"] + 2 * sizes["candidates"]
    bytes_per_row = 2 * (sizes["root"] + sizes["states"]) + 4 * numbers + 160
    max_rows = len(jobs) * (config.max_new_tokens - 1)
    require_disk(folder, "text traces", max_rows, bytes_per_row, config.max_gigabytes, "traces.texts")

    def rows_of(job: Job) -> Rows:
        settings, prompt = job
        return _rows(decoder, tracer, prompt, settings, Randomness(seed_of(config.seed, prompt.id, settings)))

    return collection.write(folder, jobs, rows_of, progress, code)


def _first(prompts: Sequence[Prompt], counts: Sequence[int]) -> list[Prompt]:
    """The first so many of each split."""
    by_split = ([one for one in prompts if one.split == split] for split in SPLITS)
    return [prompt for some, count in zip(by_split, counts, strict=True) for prompt in some[:count]]


def _rows(
    decoder: Decoder, tracer: TextTracer, prompt: Prompt, settings: SamplingSettings, randomness: Randomness
) -> Rows:
    """A row for every place of a continuation of ``prompt`` but its first."""
    options: dict[str, Any] = {"max_new_tokens": tracer.extent.budget, **dataclasses.asdict(settings)}
    text = decoder.generate(prompt.tokens, randomness=randomness, **options).tokens
    traced = tracer.trace(list(prompt.tokens), text, settings, randomness.stream("texts"))
    return [{**place_columns(prompt, settings), **columns} for columns in traced]


def _extent(pair: ModelPair, config: TextTraceConfig) -> Extent:
    spec = StopSpec(last_layers(pair.draft, config.draft_layers), hidden_size(pair.draft), config.top)
    layers = last_layers(pair.target, config.layers)
    return Extent(config.gamma_max, config.max_new_tokens, config.candidates, layers, spec)


def _collection(pair: ModelPair, config: TextTraceConfig, extent: Extent, prompts: Sequence[Prompt]) -> Collection:
    """Columns, and what the manifest says, of text traces."""
    size, embedding_size = hidden_size(pair.target), len(pair.target.embedding(0))
    parameters = dataclasses.asdict(config)
    return Collection(
        TEXT_COLUMNS,
        {
            "root": len(extent.layers) * size + embedding_size,
            "slots": extent.gamma_max,
            "tops": extent.gamma_max * extent.spec.top,
            "states": extent.gamma_max * extent.spec.state_size,
            "candidates": extent.candidates,
        },
        TEXT_TRACES_VERSION,
        capture_contract(pair, extent.layers, prompts, config.settings, config.max_new_tokens),
        inputs={"config": parameters, "dtypes": dtypes(pair)},
        facts={
            "parameters": parameters,
            "gamma_max": extent.gamma_max,
            "candidates": extent.candidates,
            "max_new_tokens": extent.budget,
            "eos_tokens": sorted(pair.target.eos_tokens),
            "feature_layers": list(extent.layers),
            "hidden_size": size,
            "embedding_size": embedding_size,
            "stop_spec": dataclasses.asdict(extent.spec),
            "dtypes": dtypes(pair),
        },
        prompts_per_shard=config.prompts_per_shard,
    )
