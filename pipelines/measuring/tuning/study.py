"""The best candidates of every sampling setting, timed by successive halving on validation prompts; the winner also on test ones.

On test prompts the winner, the static chain that was fastest on validation prompts and plain decoding are decoded, interleaved
and paired, ``repeats`` times: that scores what was chosen.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipelines.measuring.arms import Arm, decoder_arm
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import PLAIN, TEST, VALIDATION
from pipelines.measuring.tuning.candidates import Candidate, shortlist, statics
from pipelines.measuring.tuning.halving import Halving, Turn
from pipelines.measuring.verifiers.timing import ArmName, decode_rows
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder, load_decoder

HALVING_SHARE = 0.6  # of max_minutes, when the halvings have to end


@dataclass(frozen=True)
class TuneConfig:
    """Section ``tune``: how many ``candidates`` are timed at each sampling setting, on how many ``validation_prompts`` (``first``
    of them in the first turn), and the winner on how many ``test_prompts``, ``repeats`` times. ``max_minutes`` bounds it all."""

    temperatures: tuple[float, ...] = (0.0, 1.0)
    candidates: int = 6
    first: int = 3
    validation_prompts: int = 12
    test_prompts: int = 24
    repeats: int = 1
    max_new_tokens: int = 48
    threads: int = 2
    seed: int = 0
    max_minutes: float | None = 9.0

    def __post_init__(self) -> None:
        for name in ("candidates", "first", "validation_prompts", "test_prompts", "repeats", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if not self.temperatures:
            raise ValueError("temperatures must name at least one.")

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature) for temperature in self.temperatures]


@dataclass(frozen=True)
class Tuned:
    """What was chosen at a sampling setting: ``winner``, the ``static`` chain beside it, and the ``turns`` of halving."""

    settings: SamplingSettings
    winner: Candidate
    static: Candidate | None
    timed: tuple[Candidate, ...]
    turns: tuple[Turn, ...]


class TuneStudy:
    """``found``: candidates by sampling setting, the fastest first; ``bundles``: folder of exported bundles."""

    def __init__(
        self,
        pair: ModelPair,
        config: TuneConfig,
        found: Mapping[SamplingSettings, list[Candidate]],
        bundles: Path,
        prompts: Mapping[str, list[Prompt]],
        log: MeasurementLog,
    ) -> None:
        self.pair, self.config, self.bundles, self.prompts, self.log = pair, config, bundles, prompts, log
        self.found = {settings: shortlist(some, config.candidates) for settings, some in found.items()}
        self.rows: Rows = []
        self.capped = False
        self._arms: dict[str, Arm] = {}

    def run(self) -> list[Tuned]:
        """Choose at every sampling setting; ``rows`` holds what was timed."""
        config = self.config
        most = sum(len(some) for some in self.found.values()) * config.validation_prompts
        tests = 3 * len(self.found) * config.test_prompts * config.repeats
        with tqdm(total=most + tests, desc="tune", unit="run") as bar:
            minutes = math.inf if config.max_minutes is None else config.max_minutes
            share = HALVING_SHARE * minutes / len(self.found)
            chosen = [
                self._chosen(settings, some, Blocks(self.log, bar, share)) for settings, some in self.found.items()
            ]
            scoring = Blocks(self.log, bar, (1 - HALVING_SHARE) * minutes)
            for prompt in scoring.within(1.0, self.prompts[TEST][: config.test_prompts]):
                for tuned, repeat in product(chosen, range(config.repeats)):
                    self.rows += self._scored(tuned, prompt, repeat, scoring)
            self.capped = self.capped or scoring.capped
        return chosen

    def _chosen(self, settings: SamplingSettings, some: list[Candidate], blocks: Blocks) -> Tuned:
        arms = {(one.name, one.name): self._arm(one) for one in some}
        for arm in arms.values():
            arm(self.prompts[VALIDATION][0].tokens, settings, self.config.seed)
        fixed = [one.name for one in statics(some)] or [PLAIN]
        halving = Halving(arms, {}, tuple(fixed), settings, self.config.seed, self.config.first)
        name = halving.run(self.prompts[VALIDATION][: self.config.validation_prompts], blocks, VALIDATION)
        self.rows += halving.rows
        self.capped = self.capped or blocks.capped
        winner = next(one for one in some if one.name == name)
        fastest = halving.ranking(fixed)[0]
        static = next((one for one in some if one.static and one.name == fastest), None)
        return Tuned(settings, winner, static, tuple(some), tuple(halving.turns))

    def _scored(self, tuned: Tuned, prompt: Prompt, repeat: int, blocks: Blocks) -> Rows:
        """The winner beside the static chain and plain decoding, on one test prompt."""
        plain = next(one for one in tuned.timed if one.name == PLAIN)
        shown = {one.name: one for one in (tuned.winner, tuned.static, plain) if one is not None}
        arms: dict[ArmName, Arm] = {(name, name): self._arm(one) for name, one in shown.items()}
        measure = partial(decode_rows, arms, {}, TEST, prompt, tuned.settings, self.config.seed, blocks.bar, repeat)
        return blocks.once(f"{TEST}/{tuned.settings.name}/{prompt.id}/{repeat}", len(arms), measure)

    def _arm(self, candidate: Candidate) -> Arm:
        if candidate.name not in self._arms:
            self._arms[candidate.name] = decoder_arm(self._decoder(candidate.served), self.config.max_new_tokens)
        return self._arms[candidate.name]

    def _decoder(self, served: dict[str, Any]) -> Decoder:
        if "decoder" in served:
            return build_decoder(self.pair, served["decoder"])
        return load_decoder(self.bundles / served["bundle"], self.pair)
