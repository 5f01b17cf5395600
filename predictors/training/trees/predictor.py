"""A delayed-tree selector of one verification rule: trained on tree labels, priced and calibrated for a machine, on a card.

Several candidates are trained; of them the one of the largest gain on validation roots is exported.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from lightning.pytorch.loggers import Logger

from predictors.config import Checked, not_empty
from predictors.latency.profile import LatencyProfile
from predictors.selection.network import SelectorNetwork, ServedSelector
from predictors.selection.rule import SelectionRule
from predictors.training.labelling.trees import KIND, LabelledRoots
from predictors.training.predictor import Fitted, Materials, told
from predictors.training.root_table import RootManifest, RootTable
from predictors.training.trainer import Trained
from predictors.training.trees.evaluation import (
    RuleCalibration,
    at_places,
    calibrated_rule,
    evaluate_selector,
    rates_by_setting,
)
from predictors.training.trees.rows import Labelling
from predictors.training.trees.training import SCORED, THROUGHPUT, Candidate, SelectorConfig, fit_selector


@dataclass(frozen=True)
class Made:
    """A candidate with its rule, its ``gain`` over static on validation roots, and its ``quality`` on test roots."""

    name: str
    labelling: Labelling
    trained: Trained[SelectorNetwork]
    rule: SelectionRule
    gain: float
    quality: dict[str, Any]


@dataclass(frozen=True)
class TreePredictor(Checked):
    """Family ``tree``: the selector of verification ``rule``, the best of ``candidates``, each trained by ``training`` and given
    a rule by ``calibration``."""

    rule: str
    candidates: Annotated[tuple[Candidate, ...], not_empty] = (
        Candidate(),
        Candidate(states=True),
        Candidate(THROUGHPUT, states=True),
    )
    training: SelectorConfig = field(default_factory=SelectorConfig)
    calibration: RuleCalibration = field(default_factory=RuleCalibration)

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        """Train, calibrate and score every candidate; export the best."""
        roots = RootTable.read(materials.trees)
        manifest = roots.manifest
        table = LabelledRoots.of(roots, materials.labels_of(KIND, manifest))
        made = [self.candidate(candidate, table, materials.profile, logger) for candidate in self.candidates]
        best = max(made, key=lambda one: one.gain)
        reason, rule = sentence(best.quality), best.rule
        how = f"{best.name}, chosen by {rule.score} with margin {rule.margin:g}, κ {rule.rate_factor:g}"
        card = build_card(manifest, best)
        card["selection"] = {"predictor": name, "candidate": best.name, "reason": reason}
        tried = {
            one.name: {"validation_gain": one.gain, "test_gain": one.quality["parts"]["all"]["selector"]["gain"]}
            for one in made
        }
        quality = best.quality | {"candidates": tried}
        return Fitted(card, best.trained.network.state_dict(), quality, _tracked(best), f"{reason}; {how}")

    def candidate(
        self, candidate: Candidate, table: LabelledRoots, profile: LatencyProfile, logger: Logger | None = None
    ) -> Made:
        """Train, calibrate on validation roots and evaluate on test roots; curves are logged under the candidate's name."""
        labelling = Labelling.of(table, self.rule, profile, candidate.states)
        train, validation, test = (labelling.rows(table.rows(split)) for split in ("train", "validation", "test"))
        trained = fit_selector(labelling, train, validation, candidate.objective, self.training)
        if logger is not None:
            for place, epoch in enumerate(trained.history):
                logger.log_metrics({f"{candidate.name}_{key}": value for key, value in epoch.items()}, place)
        served = ServedSelector(trained.network, train.features.device)
        rule, gain = calibrated_rule(served, labelling, validation, SCORED[candidate.objective], self.calibration)
        quality = evaluate_selector(served, labelling, rule, test, self.calibration) | {
            "candidate": candidate.name,
            "validation_tokens_per_second": at_places(validation, validation.static_N, 0.0).throughput * (1 + gain),
            "validation": rates_by_setting(served, validation, rule),
            "history": trained.history,
            "best_epoch": trained.best_epoch,
        }
        return Made(candidate.name, labelling, trained, rule, gain, quality)


def build_card(manifest: RootManifest, best: Made) -> dict[str, Any]:
    """The bundle's card (`predictors.controllers.delayed_tree`): a function of file contents only."""
    labelling, measured = best.labelling, best.quality
    static = labelling.actions[labelling.statics()[0].place]
    return {
        "kind": "delayed_tree",
        "contract": manifest.contract,
        "selection_spec": asdict(labelling.spec),
        "rule": asdict(best.rule),
        "prices": asdict(labelling.prices),
        "traffic": [asdict(made) for made in labelling.traffic],
        "decoder": {
            "method": "speculative",
            "drafter": {"kind": "delayed_tree", **asdict(static)},
            "verifier": labelling.rule,
        },
        "measured_quality": {"split": "test", **{key: measured[key] for key in ("roots", "documents", "parts")}},
        "lineage": {"traces_sha256": manifest.content_hash},
    }


def sentence(measured: Mapping[str, Any]) -> str:
    """What choosing per root is worth on held-out documents."""
    part = measured["parts"]["all"]
    most = part["oracle_same_draws"]["gain"]["value"]
    least = f"{part['oracle']['gain']['value']:+.1%}" if "oracle" in part else "an unknown gain"
    actions = ", ".join(f"{where}: {action}" for where, action in measured["static_actions"].items())
    return (
        f"{measured['rule']}: {told(part['selector']['gain'])} expected tokens/s over the best static tree ({actions}); "
        f"a perfect choice would bring between {least} and {most:+.1%}"
    )


def _tracked(best: Made) -> dict[str, float | None]:
    """Flat metrics."""
    part = best.quality["parts"]["all"]
    names = [name for name in ("static", "selector", "oracle") if name in part]
    metrics = {
        f"test_{key}_{name}": part[name][key]["value"]
        for name in names
        for key in ("block_efficiency", "tokens_per_second")
    }
    metrics |= {"test_gain_over_best_static": part["selector"]["gain"]["value"], "validation_gain": best.gain}
    return metrics | {"margin": best.quality["margin"]}
