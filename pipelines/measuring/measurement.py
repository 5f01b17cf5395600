"""The one measurement: its parameters and its order of work, in this process or over many workers.

    validation prompts   families with something to choose: the fastest arm of each is chosen at every setting, beside plain
                         decoding, over which tuning reads the gains
    test prompts         always plain decoding and the rivals (``always``); of all other arms a rotating group (`rotation`), each
                         with those that go beside it
                         arms that a family chose stand for it; those without a choice stand for themselves

Whatever is compared later is compared on the blocks where both were timed. A worker times whole prompts and interleaves their
arms as a single process does: arms compare by prompt, so that a worker's own speed is in no comparison. Its rows name it.
"""

import os
import platform
import random
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from tqdm import tqdm

from pipelines.measuring.arm_rows import ArmRow, expanded
from pipelines.measuring.arms import ArmBuilder, TimedArm
from pipelines.measuring.harness import Harness, Planned, Spread, Task, tokens_per_second
from pipelines.measuring.led import RecordedTexts, TextLeader
from pipelines.measuring.measurement_log import Blocks, MeasurementLog, Rows
from pipelines.measuring.names import PLAIN, WALL, WORKER
from pipelines.pair_folder import read_pair
from pipelines.prompt_table import Prompt
from predictors.config import Checked, Count, Whole, at_least, not_empty
from predictors.latency.serving import Serving
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair

VALIDATION_SHARE, TEST_SHARE = 0.25, 1.0  # of max_minutes, when these splits have to end


@dataclass(frozen=True)
class MeasureConfig(Checked):
    """Section ``measure``: how much is measured, of which ``arms``, at which ``temperatures`` (0 and 1, if nothing is said), or
    ``settings`` with filters.

    Of the ``test_prompts`` each slice has its share of the test documents, and at least ``slice_prompts``.
    ``group``: how many rotating arms a test prompt times, each with those beside it; ``exactness_prompts`` compare greedy texts
    with Hugging Face's; ``max_minutes`` ends the measurement early, after a whole prompt.
    """

    arms: Annotated[tuple[ArmRow, ...], not_empty]
    temperatures: tuple[float, ...] | None = None
    settings: tuple[SamplingSettings, ...] = ()
    validation_prompts: Count = 6
    test_prompts: Count = 24
    slice_prompts: Whole = 8
    group: Count = 8
    repeats: Count = 1
    max_new_tokens: Annotated[int, at_least(2)] = 48  # a prefill and a round
    threads: Count = 2
    seed: int = 0
    led: bool = True
    exactness_prompts: Whole = 2
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        unfiltered = (0.0, 1.0) if self.temperatures is None else self.temperatures
        settings = self.settings or tuple(map(SamplingSettings, unfiltered))
        temperatures = tuple(dict.fromkeys(one.temperature for one in settings))
        if not settings:
            raise ValueError("temperatures must not be empty.")
        if self.temperatures not in (None, temperatures):
            raise ValueError(f"temperatures {self.temperatures} are not those of settings: give one of them.")
        object.__setattr__(self, "settings", settings)
        object.__setattr__(self, "temperatures", temperatures)
        expanded(self.arms, "")


class Measurement:
    """A measurement under way; ``capped`` says that time ran out. ``choices`` are those of validation prompts."""

    def __init__(
        self,
        pair: ModelPair,
        config: MeasureConfig,
        bundles: Path,
        log: MeasurementLog,
        texts: RecordedTexts | None = None,
    ) -> None:
        self.config, self.log = config, log
        self.leading = TextLeader(pair, config.max_new_tokens, texts) if config.led else None
        self.builder = ArmBuilder(pair, bundles, config.max_new_tokens)
        rows = expanded(config.arms, str(bundles))
        rows = [row for row in rows if any(row.at(one.temperature) for one in config.settings)]
        self.arms = self.builder.build(rows)
        self.rows = [row for row in rows if row.name in self.arms]
        self.choices: list[dict[str, Any]] = []
        self.walls: dict[str, TimedArm] = {}
        self.capped = False

    def harness(self, bar: tqdm, spread: Spread | None = None) -> Harness:
        """What times the arms, over the log; ``bar`` shows its progress."""
        config = self.config
        blocks = Blocks(self.log, bar, config.max_minutes)
        return Harness(blocks, config.settings, config.seed, config.repeats, self.leading, spread)

    def prompt(self, prompt: Prompt, names: Sequence[str]) -> Rows:
        """Rows of one prompt's decodes by arms of these ``names``; concurrent ones are made where they are first met."""
        harness = self.harness(tqdm(disable=True))
        fresh = self.builder.concurrent(row for row in self.rows if row.name + WALL in {*names} - {*self.walls})
        harness.warm_up(fresh, prompt)
        self.walls |= fresh
        known = self.arms | self.walls
        return harness.time([(prompt, [known[name] for name in names])])

    def run(self, validation: Sequence[Prompt], test: Sequence[Prompt], spread: Spread | None = None) -> Rows:
        """Rows of all decodes; with ``spread``, prompts are timed by workers."""
        swept = [self.arms[row.name] for row in self.rows if row.choose or row.name == PLAIN]
        always = sum(row.always for row in self.rows)
        tested = len(test) * (always + min(self.config.group, len(self.rows) - always))
        about = self.config.repeats * len(self.config.settings) * (len(validation) * len(swept) + tested)
        with tqdm(total=about, desc="measure", unit="decode") as bar:
            harness = self.harness(bar, spread)
            harness.warm_up(self.arms, validation[0])
            rows = harness.time([(prompt, swept) for prompt in validation], VALIDATION_SHARE)
            self.choices = self.log.once("choices", lambda: self._choices(rows))  # a resumed run keeps them
            self.walls = self.builder.concurrent(row for row in self.rows if self._tested(row))
            harness.warm_up(self.walls, validation[0])
            bar.total = bar.n  # now it is known
            rows += harness.time(self._planned(test), TEST_SHARE)
        self.capped = harness.blocks.capped
        return rows

    @property
    def decoders(self) -> dict[str, Decoder]:
        """Our decoders by arm, over the pair's own forward."""
        pair = self.builder.pair
        return {name: arm.decoder for name, arm in self.arms.items() if arm.decoder and arm.decoder.pair is pair}

    def close(self) -> None:
        """End the processes of concurrent arms."""
        for wall in self.walls.values():
            assert wall.decoder is not None
            wall.decoder.close()

    def _choices(self, rows: Rows) -> list[dict[str, Any]]:
        """The fastest arm of each family at each setting, with the sweep it was chosen from."""
        choices = []
        for settings in self.config.settings:
            swept = [row for row in self.rows if row.choose and row.at(settings.temperature)]
            for family in dict.fromkeys(row.family for row in swept):
                names = [row.name for row in swept if row.family == family]
                sweep = {name: tokens_per_second(rows, name, **asdict(settings)) for name in names}
                best = max(sweep, key=sweep.__getitem__)
                made = {"family": family, "arm": best, "tokens_per_second": sweep}
                choices.append(asdict(settings) | made)
        return choices

    def _tested(self, row: ArmRow) -> bool:
        """Whether test prompts time it at any temperature."""
        return row.always or not row.choose or row.name in {choice["arm"] for choice in self.choices}

    def _planned(self, test: Sequence[Prompt]) -> Planned:
        """What test prompts time: who is always timed, and a group of the others, each with those that go beside it."""
        tested = [row for row in self.rows if self._tested(row)]
        always = [self.arms[row.name] for row in tested if row.always]
        rotating = {row.name: row for row in tested if not row.always}
        others: dict[str, list[TimedArm]] = {}
        for name, row in rotating.items():
            others.setdefault(row.beside if row.beside in rotating else name, []).append(self.arms[name])
        turns = {name: rotating[name].turns for name in others} | dict.fromkeys(self.walls, 1)
        others |= {name: [wall] for name, wall in self.walls.items()}
        groups = rotation(test, turns, self.config.group, self.config.seed)
        return [
            (prompt, [*always, *(arm for name in names for arm in others[name])])
            for prompt, names in zip(test, groups, strict=True)
        ]


def rotation(prompts: Sequence[Prompt], turns: Mapping[str, int], group: int, seed: int) -> list[tuple[str, ...]]:
    """The rotating arms of each prompt: ``group`` different ones (all, where there are no more) of those that have ``turns``.
    Which they are follows from the seed, the arms and the prompts' slices: more prompts change nothing about the earlier ones.

    A prompt takes those that its slice has timed least, and among these those that all slices have, each over its turns; where
    they are even, chance decides. So every arm is timed equally often in every slice, give or take one, about so in all
    together, and any two meet about equally often. Source: cyclic incomplete block designs (John and Williams, Cyclic and
    Computer Generated Designs, 1995), with chance in place of a cycle.
    """
    chance, timed, groups = random.Random(seed), Counter[tuple[str | None, str]](), []
    for prompt in prompts:
        order = chance.sample(sorted(turns), len(turns))
        order.sort(key=lambda arm: [timed[where, arm] / turns[arm] for where in (prompt.slice, None)])
        groups.append(tuple(order[:group]))
        timed.update((where, arm) for arm in groups[-1] for where in (prompt.slice, None))
    return groups


def worker(
    config: MeasureConfig, pair_folder: Path, serving: Serving, bundles: Path, texts: Path | None, first: Prompt
) -> Measurement:
    """What a worker times prompts with: the models in memory, all arms warmed up on prompt ``first``, a log that is not kept."""
    torch.set_num_threads(config.threads)
    pair = ModelPair.load(**read_pair(pair_folder).models, record=serving)
    log, recorded = MeasurementLog(Path(os.devnull), ""), RecordedTexts(texts, config.max_new_tokens)
    made = Measurement(pair, config, bundles, log, recorded)
    made.harness(tqdm(disable=True)).warm_up(made.arms, first)
    return made


def whole_prompt(made: Measurement, task: Task) -> tuple[Rows, list[str]]:
    """A worker's task: its rows, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        rows = made.prompt(*task)
    by = {WORKER: f"{platform.node()}/{os.getpid()}"}
    return [row | by for row in rows], [str(one.message) for one in caught if one.category is UserWarning]
