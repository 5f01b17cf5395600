"""The one measurement: its parameters and its order of work.

validation prompts   arms of families with something to choose, and plain decoding: the fastest of each is chosen at every setting
test prompts         every arm on every prompt, interleaved and paired
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm

from pipelines.measuring.arm_rows import ArmRow, expanded
from pipelines.measuring.arms import ArmBuilder
from pipelines.measuring.harness import Harness, tokens_per_second
from pipelines.measuring.measurement_log import Blocks, MeasurementLog, Rows
from pipelines.measuring.names import PLAIN
from pipelines.prompt_table import Prompt
from predictors.config import Checked, Count, Whole, at_least, not_empty
from predictors.sampling import SamplingSettings
from runtime import ModelPair


@dataclass(frozen=True)
class MeasureConfig(Checked):
    """Section ``measure``: which ``arms`` decode how many prompts, at which ``temperatures`` (0 and 1, if nothing is said), or
    ``settings`` with filters. ``exactness_prompts`` compare greedy texts with Hugging Face's."""

    arms: Annotated[tuple[ArmRow, ...], not_empty]
    temperatures: tuple[float, ...] | None = None
    settings: tuple[SamplingSettings, ...] = ()
    validation_prompts: Count = 6
    test_prompts: Count = 24  # of every slice as many as its share of the documents
    repeats: Count = 1
    max_new_tokens: Annotated[int, at_least(2)] = 48  # a prefill and a round
    threads: Count = 2
    seed: int = 0
    exactness_prompts: Whole = 2

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
    """A measurement under way; ``choices`` are those of validation prompts."""

    def __init__(self, pair: ModelPair, config: MeasureConfig, bundles: Path, log: MeasurementLog) -> None:
        self.config, self.log = config, log
        self.builder = ArmBuilder(pair, bundles, config.max_new_tokens)
        rows = expanded(config.arms, str(bundles))
        self.arms = self.builder.build(rows)
        self.rows = [row for row in rows if row.name in self.arms]
        self.choices: list[dict[str, Any]] = []

    def run(self, validation: Sequence[Prompt], test: Sequence[Prompt]) -> Rows:
        """Rows of all decodes."""
        config, every = self.config, list(self.arms.values())
        swept = [self.arms[row.name] for row in self.rows if row.choose or row.name == PLAIN]
        about = len(validation) * len(swept) + len(test) * len(every)
        with tqdm(total=config.repeats * len(config.settings) * about, desc="measure", unit="decode") as bar:
            harness = Harness(Blocks(self.log, bar), config.settings, config.seed, config.repeats)
            harness.warm_up(self.arms, validation[0])
            rows = harness.time([(prompt, swept) for prompt in validation])
            self.choices = self.log.once("choices", lambda: self._choices(rows))  # a resumed run keeps them
            return rows + harness.time([(prompt, every) for prompt in test])

    def _choices(self, rows: Rows) -> list[dict[str, Any]]:
        """The fastest arm of each family at each setting, with the sweep it was chosen from."""
        families: dict[str, list[str]] = {}
        for row in self.rows:
            if row.choose:
                families.setdefault(row.family, []).append(row.name)
        choices = []
        for settings in map(asdict, self.config.settings):
            for family, names in families.items():
                sweep = {name: tokens_per_second(rows, name, **settings) for name in names}
                best = max(sweep, key=sweep.__getitem__)
                choices.append(settings | {"family": family, "arm": best, "tokens_per_second": sweep})
        return choices
