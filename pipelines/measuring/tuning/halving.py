"""Successive halving: few prompts for many candidates, more prompts for the better half, until one is left.

Every candidate still in is decoded on every prompt of a turn, interleaved and in an order of its own, all with one seed per
prompt; the turn's slower half goes, by tokens per second over all prompts so far. Baselines are never dropped: what is chosen is
scored beside the fastest of them. Source: Jamieson and Talwalkar 2016.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pipelines.measuring.arms import Arm
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.verifiers.timing import ArmName, decode_rows
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings


@dataclass(frozen=True)
class Turn:
    """``prompts`` of one turn, and which candidates were timed on them, fastest so far first."""

    prompts: int
    ranking: tuple[str, ...]


@dataclass
class Halving:
    """``arms`` by (name, verifier), of which ``baselines`` stay in; ``first`` prompts in the first turn, twice as many in each
    further one."""

    arms: Mapping[ArmName, Arm]
    families: Mapping[str, str]
    baselines: tuple[str, ...]
    settings: SamplingSettings
    seed: int
    first: int = 3
    rows: Rows = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def run(self, prompts: Sequence[Prompt], blocks: Blocks, split: str) -> str:
        """The winner; ``rows`` and ``turns`` hold what was measured."""
        names = [name for name, _ in self.arms]
        for part in self._parts(prompts):
            arms = {key: arm for key, arm in self.arms.items() if key[0] in names}
            for prompt in blocks.within(1.0, part):
                measure = partial(decode_rows, arms, self.families, split, prompt, self.settings, self.seed, blocks.bar)
                key = f"{self.settings.name}/{prompt.id}/{','.join(sorted(names))}"
                self.rows += blocks.once(key, len(arms), measure)
            ranking = self.ranking(names)
            self.turns.append(Turn(len(part), tuple(ranking)))
            names = self._kept(ranking)
            if blocks.capped or len(names) < 2:
                break
        return self.turns[-1].ranking[0]

    def ranking(self, names: Sequence[str]) -> list[str]:
        """``names``, the fastest first: tokens per second over all prompts that each of them has decoded."""

        def rate(name: str) -> float:
            rows = [row for row in self.rows if row["drafter"] == name]
            return float(sum(row["tokens"] for row in rows) / sum(row["seconds"] for row in rows))

        return sorted(names, key=rate, reverse=True)

    def _kept(self, ranking: Sequence[str]) -> list[str]:
        kept = list(ranking[: max(1, len(ranking) // 2)])
        return [*kept, *(name for name in self.baselines if name not in kept)]

    def _parts(self, prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
        """Prompts by turn, twice as many each time; the last turn takes what is left of them."""
        start, size = 0, self.first
        while start < len(prompts):
            yield prompts[start : start + size]
            start, size = start + size, 2 * size
