"""A delayed-tree selector of one verification rule: trained on tree labels, priced and calibrated for a machine, on a card.

Several candidates are trained; of them the one of the largest gain on validation roots is exported.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from lightning.pytorch.loggers import Logger

from predictors.config import Checked, not_empty
from predictors.latency.profile import LatencyProfile
from predictors.schema import SPLITS
from predictors.training.labelling.trees import KIND
from predictors.training.predictor import Fitted, Materials, card_of, told
from predictors.training.root_table import RootTable
from predictors.training.trees.evaluation import (
    RuleCalibration,
    calibrated_rule,
    evaluate_selector,
    judged,
    rates_by_setting,
)
from predictors.training.trees.rows import Labelling
from predictors.training.trees.training import SCORED, THROUGHPUT, Candidate, SelectorConfig, fit_selector


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
        roots = RootTable.read(materials.trees)
        table = roots.labelled(materials.labels_of(KIND, roots.manifest))
        made = {one.name: self.candidate(one, table, materials.profile, logger) for one in self.candidates}
        tried: dict[str, dict[str, Any]] = {
            candidate: {
                "validation_gain": one.metrics["validation_gain"],
                "test_gain": one.quality["parts"]["all"]["selector"]["gain"],
            }
            for candidate, one in made.items()
        }
        candidate = max(tried, key=lambda one: float(tried[one]["validation_gain"]))
        best, rule = made[candidate], made[candidate].card["rule"]
        selection = {"predictor": name, "candidate": candidate, "reason": best.sentence}
        how = f"chosen by {rule['score']} with margin {rule['margin']:g}, κ {rule['rate_factor']:g}"
        return replace(
            best,
            card=best.card | {"selection": selection},
            quality=best.quality | {"candidates": tried},
            sentence=f"{best.sentence}; {candidate}, {how}",
        )

    def candidate(
        self, candidate: Candidate, table: RootTable, profile: LatencyProfile, logger: Logger | None = None
    ) -> Fitted:
        """Train, calibrate on validation roots and evaluate on test roots; curves are logged under the candidate's name."""
        labelling = Labelling.of(table, self.rule, profile, candidate.states)
        train, validation, test = (labelling.rows(table.rows(split)) for split in SPLITS)
        trained = fit_selector(labelling, train, validation, candidate.objective, self.training)
        if logger is not None:
            for place, epoch in enumerate(trained.history):
                logger.log_metrics({f"{candidate.name}_{key}": value for key, value in epoch.items()}, place)
        held, said = judged(trained.network, validation), judged(trained.network, test)
        rule, gain = calibrated_rule(held, labelling, validation, SCORED[candidate.objective], self.calibration)
        quality = evaluate_selector(said, labelling, rule, test, self.calibration) | {
            "candidate": candidate.name,
            "validation_tokens_per_second": validation.static.throughput * (1 + gain),
            "validation": rates_by_setting(held, validation, rule),
            "history": trained.history,
            "best_epoch": trained.best_epoch,
        }
        drafter = {"kind": "delayed_tree", **asdict(labelling.actions[labelling.statics()[0].place])}
        decoder = {"method": "speculative", "drafter": drafter, "verifier": labelling.rule}
        card = card_of("delayed_tree", table.manifest, decoder) | {
            "selection_spec": asdict(labelling.spec),
            "rule": asdict(rule),
            "prices": asdict(labelling.prices),
            "traffic": [asdict(made) for made in labelling.traffic],
            "measured_quality": {"split": "test", **{key: quality[key] for key in ("roots", "documents", "parts")}},
        }
        return Fitted(card, trained.network.state_dict(), quality, _metrics(quality, gain), sentence(quality))


def sentence(measured: Mapping[str, Any]) -> str:
    """Summarise in a sentence what choosing per root gains on held-out documents."""
    part = measured["parts"]["all"]
    most = part["oracle_same_draws"]["gain"]["value"]
    least = f"{part['oracle']['gain']['value']:+.1%}" if "oracle" in part else "an unknown gain"
    actions = ", ".join(f"{where}: {action}" for where, action in measured["static_actions"].items())
    return (
        f"{measured['rule']}: {told(part['selector']['gain'])} expected tokens/s over the best static tree ({actions}); "
        f"a perfect choice would bring between {least} and {most:+.1%}"
    )


def _metrics(measured: Mapping[str, Any], gain: float) -> dict[str, float | None]:
    part = measured["parts"]["all"]
    metrics = {
        f"test_{key}_{name}": part[name][key]["value"]
        for name in ("static", "selector", "oracle")
        if name in part
        for key in ("block_efficiency", "tokens_per_second")
    }
    metrics |= {"test_gain_over_best_static": part["selector"]["gain"]["value"], "validation_gain": gain}
    return metrics | {"margin": measured["margin"]}
