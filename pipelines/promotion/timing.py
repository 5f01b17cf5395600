"""Times the arms of a trial by the one harness. The gate and the trial know no more of a clock than `Measure`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from pipelines.measuring.arm_builder import arm_of
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.harness import Harness, Leading, apart
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import CHAIN, PLAIN, PLAIN_FAMILY, chain_gamma
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder

Measure = Callable[
    [Mapping[str, Decoder], Sequence[Prompt]], tuple[Rows, Rows]
]  # (decodes, rounds), interleaved by block


@dataclass
class BlockTiming:
    """A `Measure`: every prompt at every setting is a block of all arms. ``capped`` says that time ran out."""

    settings: Sequence[SamplingSettings]
    max_new_tokens: int
    log: MeasurementLog
    repeats: int = 1
    seed: int = 0
    max_minutes: float | None = None
    leading: Leading | None = None
    capped: bool = field(default=False, init=False)

    def __call__(self, decoders: Mapping[str, Decoder], prompts: Sequence[Prompt]) -> tuple[Rows, Rows]:
        arms = {name: arm_of(name, family_of(name), one, self.max_new_tokens) for name, one in decoders.items()}
        rows = Rows()
        if not prompts:
            return rows, Rows()
        with tqdm(
            total=len(prompts) * len(self.settings) * self.repeats * len(arms), desc="trial", unit="decode"
        ) as bar:
            blocks = Blocks(self.log, bar, self.max_minutes)
            harness = Harness(blocks, self.settings, self.seed, self.repeats, self.leading)
            harness.warm_up(arms, prompts[0])
            for split in dict.fromkeys(prompt.split for prompt in prompts):
                some = [(prompt, list(arms.values())) for prompt in prompts if prompt.split == split]
                rows += harness.time(split, some)
        self.capped = blocks.capped
        return apart(rows)


def family_of(arm: str) -> str:
    """Of an arm of a trial: plain decoding's, static chains', or its own name."""
    if arm == PLAIN:
        return PLAIN_FAMILY
    return arm if chain_gamma(arm) is None else CHAIN
