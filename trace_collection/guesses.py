"""Collect guess traces: what every pass of a model that drafts for itself fed, and how many tokens it committed.

Every prompt is decoded in every configured way. Counts are the model's own: what passes of so many rows cost is a latency
profile's business. Rows are those of `predictors.schema`.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from predictors.config import Count, at_least, not_empty
from predictors.sampling import SamplingSettings
from predictors.schema import GUESS_COLUMNS, GUESS_TRACES_VERSION, Prompt
from runtime import ModelPair, build_decoder
from trace_collection.collection import CollectionConfig, Collector, Job, first_of_splits
from trace_collection.shards import Rows, columns_of


@dataclass(frozen=True, kw_only=True)
class GuessTraceConfig(CollectionConfig):
    """Section of guess traces: the ``ways`` to decode, decoder configurations without a draft, on the first ``prompts``
    validation prompts."""

    ways: Annotated[tuple[dict, ...], not_empty]
    prompts: Count = 16
    max_new_tokens: Annotated[int, at_least(2)] = 64
    temperatures: Annotated[tuple[float, ...], not_empty] = (0.0, 1.0)
    prompts_per_shard: Count = 4

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature) for temperature in self.temperatures]


class GuessCollector(Collector):
    """Collects a row for every pass after the prefill. The pair's draft is left out, also of the contract."""

    name = "guesses"
    columns = GUESS_COLUMNS
    version = GUESS_TRACES_VERSION
    drafts = False

    def __init__(self, pair: ModelPair, config: GuessTraceConfig, prompts: Sequence[Prompt]) -> None:
        alone = ModelPair(pair.target, tokenizer=pair.tokenizer)
        super().__init__(alone, config, first_of_splits(prompts, (0, config.prompts, 0)))
        self.decoders = [build_decoder(alone, way) for way in config.ways]
        self.new_tokens = self.reach = config.max_new_tokens
        self.rows_per_job = len(self.decoders) * config.max_new_tokens

    @property
    def facts(self) -> dict[str, Any]:
        return {"ways": list(self.config.ways)}

    def traced(self, jobs: Sequence[Job]) -> Iterator[Rows]:
        for job in jobs:
            yield columns_of([one for way in range(len(self.decoders)) for one in self._passes(job, way)])

    def _passes(self, job: Job, way: int) -> Iterator[dict[str, int]]:
        """Yield what every pass of one way fed and committed."""
        settings, prompt = job
        options: Mapping[str, Any] = {"max_new_tokens": self.new_tokens, **dataclasses.asdict(settings)}
        position = len(prompt.tokens)
        steps = self.decoders[way].stream(prompt.tokens, randomness=self.chance(job), **options)
        for number, step in enumerate(steps):
            record = step.record
            if number:
                counts = {"guessed": record.guessed, "drafted": record.drafted, "committed": record.accepted + 1}
                yield {"way": way, "round": number, "position": position, **counts}
            position += len(step.tokens)
