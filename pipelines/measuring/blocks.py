"""A long measurement in blocks: each measured once and logged, within a share of the time allowed, its progress shown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from tqdm import tqdm

from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.prompt_table import Prompt


@dataclass
class Blocks:
    """``bar`` counts steps, of which a block has some; ``capped`` says that ``max_minutes`` ran out."""

    log: MeasurementLog
    bar: tqdm
    max_minutes: float | None = None
    capped: bool = False
    _started: float = field(default_factory=perf_counter)

    def within(self, share: float, prompts: Sequence[Prompt]) -> Iterator[Prompt]:
        """The prompts in turn, until ``share`` of ``max_minutes`` has passed; one at least."""
        for index, prompt in enumerate(prompts):
            if (
                index
                and self.max_minutes is not None
                and perf_counter() - self._started > 60 * share * self.max_minutes
            ):
                self.capped = True
                return
            yield prompt

    def once(self, key: str, steps: int, measure: Callable[[], Rows]) -> Rows:
        """Rows of block ``key``. ``measure`` moves the bar itself; a block that an earlier run left moves it by ``steps``."""
        known = key in self.log
        rows = self.log.once(key, measure)
        self.bar.update(steps if known else 0)
        return rows
