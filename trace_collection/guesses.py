"""Collect guess traces: what every pass of a model that drafts for itself fed, and how many tokens it committed.

Every prompt is decoded in every configured way. Counts are the model's own: what passes of so many rows cost is a latency
profile's business. Rows are those of `predictors.schema`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from predictors.sampling import SamplingSettings
from predictors.schema import GUESS_COLUMNS, GUESS_TRACES_VERSION
from runtime import Decoder, ModelPair, Randomness, build_decoder
from trace_collection.collection import (
    Collection,
    Job,
    Progress,
    Rows,
    capture_contract,
    dtypes,
    require_context,
    require_disk,
    seed_of,
)
from trace_collection.rows import Prompt, place_columns

BYTES_PER_ROW = 128


@dataclass(frozen=True)
class GuessTraceConfig:
    """How guess traces are collected: the ``ways`` to decode, decoder configurations without a draft, on the first ``prompts``
    validation prompts."""

    ways: tuple[dict, ...]
    prompts: int = 16
    max_new_tokens: int = 64
    temperatures: tuple[float, ...] = (0.0, 1.0)
    prompts_per_shard: int = 4
    threads: int = 2
    seed: int = 0
    max_gigabytes: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (("prompts", 1), ("max_new_tokens", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}.")
        if not self.temperatures or not self.ways:
            raise ValueError("temperatures and ways must name at least one each.")

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature) for temperature in self.temperatures]


def collect_guesses(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    config: GuessTraceConfig,
    folder: Path,
    progress: Progress,
    code: str = "",
) -> dict[str, int]:
    """Write the shards and the manifest of guess traces into ``folder``; arguments and result as `collect`'s. The pair's draft is
    left out, also of the contract."""
    alone = ModelPair(pair.target, tokenizer=pair.tokenizer)
    torch.set_num_threads(config.threads)
    decoders = [build_decoder(alone, way) for way in config.ways]
    require_context(alone.target.context_limit, prompts, config.max_new_tokens, "traces.guesses.max_new_tokens")
    jobs = [(settings, prompt) for settings in config.settings for prompt in prompts]
    max_rows = len(jobs) * len(decoders) * config.max_new_tokens
    require_disk(folder, "guess traces", max_rows, BYTES_PER_ROW, config.max_gigabytes, "traces.guesses")
    parameters = dataclasses.asdict(config)
    formats = {"target": dtypes(alone)["target"]}
    collection = Collection(
        GUESS_COLUMNS,
        {},
        GUESS_TRACES_VERSION,
        capture_contract(alone, (), prompts, config.settings, config.max_new_tokens),
        inputs={"config": parameters, "dtypes": formats},
        facts={"ways": list(config.ways), "parameters": parameters, "dtypes": formats},
        prompts_per_shard=config.prompts_per_shard,
    )

    def rows_of(job: Job) -> Rows:
        settings, prompt = job
        return [row for way, decoder in enumerate(decoders) for row in _decoded(decoder, way, prompt, settings, config)]

    return collection.write(folder, jobs, rows_of, progress, code)


def _decoded(decoder: Decoder, way: int, prompt: Prompt, settings: SamplingSettings, config: GuessTraceConfig) -> Rows:
    """Decode ``prompt`` and describe every pass after the prefill."""
    options: Mapping[str, Any] = {"max_new_tokens": config.max_new_tokens, **dataclasses.asdict(settings)}
    randomness = Randomness(seed_of(config.seed, prompt.id, settings))
    rows: Rows = []
    position = len(prompt.tokens)
    for number, step in enumerate(decoder.stream(prompt.tokens, randomness=randomness, **options)):
        record = step.record
        if number:
            place = {**place_columns(prompt, settings), "way": way, "round": number, "position": position}
            counts = {"guessed": record.guessed, "drafted": record.drafted, "committed": record.accepted + 1}
            rows.append({**place, **counts})
        position += len(step.tokens)
    return rows
