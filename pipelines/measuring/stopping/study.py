"""What rules that stop drafting do on held-out prompts, on the clock: parameters and order of work.

    chains      every static length; confidence at every ε; entropy, roc, ema; every stop model, and where calibration leaves it
                unasked also the model asked anyway
    trees       static forks and k-configurations; dynamic forks, stopped by MCSD's models where every chain's chance is below β

All arms, interleaved and paired, with one seed per prompt, in several orders; on validation prompts only what has a setting to
choose.
"""

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
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.stopping.names import (
    ASKED,
    CHAIN,
    CONFIDENCE,
    CONFIG,
    DYNAMIC,
    EARLY_STOPS,
    FORK,
    RULE,
    TREES,
    UNLEARNED,
)
from pipelines.measuring.verifiers.shapes import setting_name
from pipelines.measuring.verifiers.timing import PLAIN_ARM, ArmName, decode_rows
from pipelines.prompt_table import Prompt
from predictors.controllers import EarlyStop
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, build_decoder, load_decoder

CHAIN_VERIFIER, FORK_VERIFIER = "block", "traversal"
VALIDATION_SHARE = 0.2  # of max_minutes, when the validation prompts have to end


@dataclass(frozen=True)
class StoppingConfig:
    """Section ``stopping``: static chains of ``gammas``, confidence rules at ``epsilons``, static ``forks`` (width, depth) and
    ``configs`` (children per node, level by level), and ``dynamic`` forks (none: the last of ``forks``), stopped at threshold
    ``beta``. Rules without a length of their own draft at most the longest of ``gammas``. Everything is decoded ``repeats``
    times, to the same text in another order; the fastest counts."""

    validation_prompts: int = 6
    test_prompts: int = 24
    gammas: tuple[int, ...] = (2, 4, 6, 8, 12)
    epsilons: tuple[float, ...] = (0.1, 0.2, 0.3)
    forks: tuple[tuple[int, ...], ...] = ((4, 2), (4, 4), (8, 4))
    configs: tuple[tuple[int, ...], ...] = ()
    dynamic: tuple[tuple[int, ...], ...] = ()
    beta: float = 0.4
    repeats: int = 2
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = 48
    threads: int = 2
    seed: int = 0
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("validation_prompts", "test_prompts", "repeats", "max_new_tokens", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if not self.gammas or not self.epsilons or not self.forks or not self.temperatures:
            raise ValueError("gammas, epsilons, forks and temperatures must name at least one each.")
        for fork in (*self.forks, *self.dynamic):
            if len(fork) != 2:
                raise ValueError(f"a fork is a width and a depth, got {list(fork)}.")

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature) for temperature in self.temperatures]


class StoppingStudy:
    """A measurement under way; ``capped`` says that time ran out. ``bundles``: folders of stop models by name."""

    def __init__(
        self,
        pair: ModelPair,
        config: StoppingConfig,
        bundles: Mapping[str, Path],
        prompts: Mapping[str, list[Prompt]],
        log: MeasurementLog,
    ) -> None:
        self.pair, self.config, self.prompts, self.log = pair, config, prompts, log
        self.capped = False
        self.families: dict[str, str] = {}
        self.tuned: dict[ArmName, Arm] = {}
        self.others: dict[ArmName, Arm] = {PLAIN_ARM: self._arm(build_decoder(pair, {"method": "autoregressive"}))}
        for gamma in config.gammas:
            self._add(self.tuned, f"{CHAIN}-{gamma}", CHAIN, self._chain(gamma, {"kind": "fixed"}))
        for epsilon in config.epsilons:
            confident = self._chain(max(config.gammas), {"kind": "confidence", "epsilon": epsilon})
            self._add(self.tuned, f"{CONFIDENCE}-{epsilon:g}", CONFIDENCE, confident)
        for kind in UNLEARNED:
            self._add(self.others, kind, RULE, self._chain(max(config.gammas), {"kind": kind}))
        for name, folder in bundles.items():
            exported = load_decoder(folder, pair)
            self._add(self.others, name, RULE, exported)
            model = exported.controller
            if isinstance(model, EarlyStop) and not model.asks:
                tried = self._chain(max(config.gammas), {"kind": model.kind, "bundle": str(folder), "asked": True})
                self._add(self.others, f"{name}, {ASKED}", RULE, tried)
        for width, depth in config.forks:
            self._add(self.tuned, f"{FORK}-{width}.{depth}", FORK, self._fork(width, depth, {"kind": "fixed"}))
        for widths in config.configs:
            drafter = {"kind": "multi_candidate", "config": list(widths)}
            static = self._speculative(drafter, FORK_VERIFIER, {"kind": "fixed"})
            self._add(self.tuned, f"{CONFIG}-{'.'.join(map(str, widths))}", CONFIG, static)
        for (width, depth), name in product(config.dynamic or config.forks[-1:], EARLY_STOPS):
            if name in bundles:
                paper = {"kind": "early_stop", "bundle": str(bundles[name]), "threshold": config.beta}
                self._add(self.others, f"{FORK}-{width}.{depth} {name}", DYNAMIC, self._fork(width, depth, paper))

    def run(self) -> Rows:
        """Rows of all decodes."""
        config, arms = self.config, len(self.tuned) + len(self.others)
        decodes = config.validation_prompts * len(self.tuned) + config.test_prompts * arms
        with tqdm(total=config.repeats * len(config.settings) * decodes, desc="stopping", unit="run") as bar:
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
            for settings, repeat in product(self.config.settings, range(self.config.repeats)):
                where = split, prompt, settings, self.config.seed
                measure = partial(decode_rows, arms, self.families, *where, self.blocks.bar, repeat)
                key = f"{split}/{prompt.id}/{setting_name(settings)}/{repeat}"
                rows += self.blocks.once(key, len(arms), measure)
        return rows

    def _add(self, arms: dict[ArmName, Arm], name: str, family: str, decoder: Decoder) -> None:
        self.families[name] = family
        arms[name, FORK_VERIFIER if family in TREES else CHAIN_VERIFIER] = self._arm(decoder)

    def _arm(self, decoder: Decoder) -> Arm:
        return decoder_arm(decoder, self.config.max_new_tokens)

    def _chain(self, gamma: int, controller: dict[str, Any]) -> Decoder:
        return self._speculative({"kind": "chain", "gamma": gamma}, CHAIN_VERIFIER, controller)

    def _fork(self, width: int, depth: int, controller: dict[str, Any]) -> Decoder:
        return self._speculative({"kind": "fork", "width": width, "depth": depth}, FORK_VERIFIER, controller)

    def _speculative(self, drafter: dict[str, Any], verifier: str, controller: dict[str, Any]) -> Decoder:
        config = {"method": "speculative", "drafter": drafter, "verifier": verifier, "controller": controller}
        return build_decoder(self.pair, config)
