"""What rules that stop drafting do on held-out prompts, on the clock: parameters and order of work.

    chains      every static length; confidence at every ε; entropy, roc, ema; every stop model, and where calibration leaves it
                unasked also the model asked anyway
    trees       static forks and k-configurations; dynamic forks, stopped by MCSD's models where every chain's chance is below β,
                and by every other rule

All arms, interleaved and paired, with one seed per prompt, in several orders; on validation prompts only what has a setting to
choose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pipelines.measuring.arm_study import ArmStudy, ArmStudyConfig
from pipelines.measuring.arms import Arm
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.names import (
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
    chain_arm,
    confidence_arm,
)
from pipelines.measuring.verifiers.timing import ArmName
from pipelines.prompt_table import Prompt
from predictors.bundle import read_bundle
from predictors.controllers import EarlyStop
from runtime import Decoder, ModelPair, build_decoder, load_decoder

CHAIN_VERIFIER, FORK_VERIFIER = "block", "traversal"


@dataclass(frozen=True)
class StoppingConfig(ArmStudyConfig):
    """Section ``stopping``: static chains of ``gammas``, confidence rules at ``epsilons``, static ``forks`` (width, depth) and
    ``configs`` (children per node, level by level), and ``dynamic`` forks (none: the last of ``forks``), stopped at threshold
    ``beta``; ``all_on_forks``: also by every other rule, stop models by the rule that was best for chains. Rules without a length
    of their own draft at most the longest of ``gammas``."""

    gammas: tuple[int, ...] = (2, 4, 6, 8, 12)
    epsilons: tuple[float, ...] = (0.1, 0.2, 0.3)
    forks: tuple[tuple[int, ...], ...] = ((4, 2), (4, 4), (8, 4))
    configs: tuple[tuple[int, ...], ...] = ()
    dynamic: tuple[tuple[int, ...], ...] = ()
    beta: float = 0.4
    all_on_forks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gammas or not self.epsilons or not self.forks:
            raise ValueError("gammas, epsilons and forks must name at least one each.")
        for fork in (*self.forks, *self.dynamic):
            if len(fork) != 2:
                raise ValueError(f"a fork is a width and a depth, got {list(fork)}.")


class StoppingStudy(ArmStudy):
    """``bundles``: folders of stop models by name."""

    title = "stopping"

    def __init__(
        self,
        pair: ModelPair,
        config: StoppingConfig,
        bundles: Mapping[str, Path],
        prompts: Mapping[str, list[Prompt]],
        log: MeasurementLog,
    ) -> None:
        super().__init__(pair, config, prompts, log)
        self.config = config
        for gamma in config.gammas:
            self._add(self.tuned, chain_arm(gamma), CHAIN, self._chain(gamma, {"kind": "fixed"}))
        for epsilon in config.epsilons:
            confident = self._chain(max(config.gammas), {"kind": "confidence", "epsilon": epsilon})
            self._add(self.tuned, confidence_arm(epsilon), CONFIDENCE, confident)
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
        rules = self._rules_on_forks(bundles)
        for (width, depth), name in product(config.dynamic or config.forks[-1:], rules):
            self._add(self.others, f"{FORK}-{width}.{depth} {name}", DYNAMIC, self._fork(width, depth, rules[name]))

    def _rules_on_forks(self, bundles: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
        """Controllers that stop forks, by name: MCSD's models at the paper's threshold, and, if ``all_on_forks``, every rule."""
        paper = {"kind": "early_stop", "threshold": self.config.beta}
        found = {name: paper | {"bundle": str(bundles[name])} for name in EARLY_STOPS if name in bundles}
        if self.config.all_on_forks:
            found |= {f"{CONFIDENCE}-{e:g}": {"kind": "confidence", "epsilon": e} for e in self.config.epsilons[:1]}
            found |= {kind: {"kind": kind} for kind in UNLEARNED}
            for name, folder in bundles.items():
                kind = read_bundle(folder).card["kind"]
                found[f"{name}, chains' rule"] = {"kind": kind, "bundle": str(folder), "asked": True}
        return found

    def _add(self, arms: dict[ArmName, Arm], name: str, family: str, decoder: Decoder) -> None:
        self.add(arms, name, family, FORK_VERIFIER if family in TREES else CHAIN_VERIFIER, self.arm(decoder))

    def _chain(self, gamma: int, controller: dict[str, Any]) -> Decoder:
        return self._speculative({"kind": "chain", "gamma": gamma}, CHAIN_VERIFIER, controller)

    def _fork(self, width: int, depth: int, controller: dict[str, Any]) -> Decoder:
        return self._speculative({"kind": "fork", "width": width, "depth": depth}, FORK_VERIFIER, controller)

    def _speculative(self, drafter: dict[str, Any], verifier: str, controller: dict[str, Any]) -> Decoder:
        config = {"method": "speculative", "drafter": drafter, "verifier": verifier, "controller": controller}
        return build_decoder(self.pair, config)
