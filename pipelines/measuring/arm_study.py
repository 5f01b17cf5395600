"""Ways of decoding, interleaved and paired by prompt: on validation prompts those with a setting to choose, on test prompts all.

All arms draw with one seed per prompt; every repeat has its own order, and of repeats the fastest counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from tqdm import tqdm

from pipelines.measuring.arms import Arm, decoder_arm
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.verifiers.timing import PLAIN_ARM, ArmName, decode_rows
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder

VALIDATION_SHARE = 0.2  # of max_minutes, when the validation prompts have to end


@dataclass(frozen=True)
class ArmStudyConfig:
    """What such studies share. Everything is decoded ``repeats`` times, to the same text in another order."""

    validation_prompts: int = 6
    test_prompts: int = 24
    repeats: int = 2
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = 48
    threads: int = 2
    seed: int = 0
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("validation_prompts", "test_prompts", "repeats", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if self.max_new_tokens < 2:
            raise ValueError(f"max_new_tokens must be >= 2, a prefill and a round, got {self.max_new_tokens}.")
        if not self.temperatures:
            raise ValueError("temperatures must name at least one.")

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature) for temperature in self.temperatures]


class ArmStudy:
    """A measurement under way; ``capped`` says that time ran out. Subclasses fill ``tuned`` (arms with a setting to choose) and
    ``others``, plain decoding being there."""

    title = "study"

    def __init__(
        self, pair: ModelPair, config: ArmStudyConfig, prompts: Mapping[str, list[Prompt]], log: MeasurementLog
    ) -> None:
        self.pair, self.prompts, self.log = pair, prompts, log
        self.shared = config
        self.capped = False
        self.families: dict[str, str] = {}
        self.tuned: dict[ArmName, Arm] = {}
        self.others: dict[ArmName, Arm] = {PLAIN_ARM: self.arm(build_decoder(pair, {"method": "autoregressive"}))}

    def arm(self, decoder: Decoder) -> Arm:
        """A decoder of ours as an arm."""
        return decoder_arm(decoder, self.shared.max_new_tokens)

    def add(self, arms: dict[ArmName, Arm], name: str, family: str, verifier: str, arm: Arm) -> None:
        """Put an arm among ``tuned`` or ``others``."""
        self.families[name] = family
        arms[name, verifier] = arm

    def run(self) -> Rows:
        """Rows of all decodes."""
        config, arms = self.shared, len(self.tuned) + len(self.others)
        decodes = config.validation_prompts * len(self.tuned) + config.test_prompts * arms
        with tqdm(total=config.repeats * len(config.settings) * decodes, desc=self.title, unit="run") as bar:
            self.blocks = Blocks(self.log, bar, config.max_minutes)
            for arm in (*self.tuned.values(), *self.others.values()):
                arm(self.prompts[VALIDATION][0].tokens, config.settings[0], 0)
            rows = self._decoded(VALIDATION, VALIDATION_SHARE, config.validation_prompts, self.tuned)
            rows += self._decoded(TEST, 1.0, config.test_prompts, self.tuned | self.others)
        self.capped = self.blocks.capped
        return rows

    def _decoded(self, split: str, share: float, count: int, arms: Mapping[ArmName, Arm]) -> Rows:
        rows = Rows()
        for prompt in self.blocks.within(share, self.prompts[split][:count]):
            for settings, repeat in product(self.shared.settings, range(self.shared.repeats)):
                where = split, prompt, settings, self.shared.seed
                measure = partial(decode_rows, arms, self.families, *where, self.blocks.bar, repeat)
                key = f"{split}/{prompt.id}/{settings.name}/{repeat}"
                rows += self.blocks.once(key, len(arms), measure)
        return rows
