"""Collect text traces: a target's own continuations, and at every position of them, as a root, what a draft from there comes to.

    along the text    ratios of both models' distributions at the text's tokens: what a verifier accepts of any draft from there
                      (`predictors.replay.acceptance`)
    the chain         as it would be drawn: so many accepted tokens, the rejected one, and a free rollout after it

A policy that stops elsewhere than another one starts its rounds at other positions, and they are all here.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch

from predictors.config import Count, Whole, at_least, not_empty, of_length, one_of
from predictors.replay.acceptance import CHAIN_RULES
from predictors.sampling import SamplingSettings
from predictors.schema import TEXT_COLUMNS, TEXT_TRACES_VERSION, Prompt
from predictors.stopping import StopSpec
from runtime import ModelPair
from runtime.randomness import Uniform, stream
from trace_collection.collection import CollectionConfig, Collector, Job, first_of_splits, hidden_size, last_layers
from trace_collection.shards import Rows
from trace_collection.text_tracer import TextTracer


@dataclass(frozen=True, kw_only=True)
class TextTraceConfig(CollectionConfig):
    """Section of text traces: how they are collected.

    Drafts of up to ``gamma_max`` tokens under the ``verifier`` that serves; hits of up to ``candidates`` tokens; the ``top``
    likeliest tokens' probabilities; the ``layers`` last hidden states of the target and ``draft_layers`` of the draft, the latter
    after a draft's first token only with ``rollout_states``, without which no controller that reads them can be replayed;
    ``prompts``: most of the splits train, validation and test; ``invariant``: temperatures of invariant texts, besides.
    """

    gamma_max: Count = 9
    verifier: Annotated[str, one_of(*CHAIN_RULES)] = "block"
    candidates: Count = 8
    prompts: Annotated[tuple[Whole, ...], of_length(3)] = (180, 54, 72)
    max_new_tokens: Annotated[int, at_least(3)] = 48  # shorter texts hold no round
    temperatures: Annotated[tuple[float, ...], not_empty] = (0.0, 1.0)
    invariant: tuple[float, ...] = ()
    top_k: int = 0
    top_p: float = 1.0
    top: Count = 10
    layers: Count = 4
    draft_layers: Count = 1
    rollout_states: bool = True

    @property
    def settings(self) -> list[SamplingSettings]:
        drawn = [SamplingSettings(temperature, self.top_k, self.top_p) for temperature in self.temperatures]
        return drawn + [SamplingSettings(temperature, self.top_k, self.top_p, True) for temperature in self.invariant]


class TextCollector(Collector):
    """Collects a row for every token of a text but its first."""

    name = "texts"
    columns = TEXT_COLUMNS
    version = TEXT_TRACES_VERSION
    keeps_said = True

    def __init__(self, pair: ModelPair, config: TextTraceConfig, prompts: Sequence[Prompt]) -> None:
        super().__init__(pair, config, first_of_splits(prompts, config.prompts))
        self.new_tokens = self.reach = config.max_new_tokens
        self.rows_per_job = config.max_new_tokens - 1
        self.layers = last_layers(pair.target, config.layers, "traces.texts.layers")
        draft_layers = last_layers(pair.draft, config.draft_layers, "traces.texts.draft_layers")
        spec = StopSpec(draft_layers, hidden_size(pair.draft), config.top)
        self.tracer = TextTracer(
            pair,
            gamma_max=config.gamma_max,
            budget=config.max_new_tokens,
            candidates=config.candidates,
            layers=self.layers,
            spec=spec,
            state_slots=config.gamma_max if config.rollout_states else 1,
            verifier=config.verifier,
        )

    def traced(self, jobs: Sequence[Job]) -> Iterator[Rows]:
        for _, text in self.texts(jobs):
            luck_2N = luck(cast(Uniform, stream(text.chance, "luck")), len(text.tokens) - 1)
            chance = stream(text.chance, "drafts")
            where = list(text.prompt), text.tokens, text.settings
            yield self.tracer.trace(*where, chance, luck_2N, text.written, text.noise)

    @property
    def sizes(self) -> dict[str, int]:
        config, spec, target = self.config, self.tracer.spec, self.pair.target
        return {
            "root": len(self.layers) * hidden_size(target) + len(target.embedding(0)),
            "slots": config.gamma_max,
            "tops": config.gamma_max * spec.top,
            "states": self.tracer.state_slots * spec.state_size,
            "hits": config.gamma_max * config.candidates,
        }

    @property
    def facts(self) -> dict[str, Any]:
        target = self.pair.target
        return {
            **{name: getattr(self.config, name) for name in ("gamma_max", "verifier", "candidates", "max_new_tokens")},
            "eos_tokens": sorted(target.eos_tokens),
            "feature_layers": list(self.layers),
            "hidden_size": hidden_size(target),
            "embedding_size": len(target.embedding(0)),
            "stop_spec": dataclasses.asdict(self.tracer.spec),
            "reads_states": self.tracer.reads_states,
        }


def luck(chance: Uniform, count: int) -> np.ndarray:
    """Draw uniform numbers [2, count] in [0, 1): ``kept`` and ``tried`` of so many positions."""
    uniform = torch.empty(2, count, 1, dtype=torch.float64)
    chance.fill(uniform)
    return np.asarray(uniform.squeeze(2).numpy())
