"""Family ``tree``: a delayed-tree selector of one verification rule, trained on tree labels, priced and calibrated for a machine.
Several candidates are trained; of them the one of the largest gain on validation roots is exported. Choices per root are
evaluated on roots that were not trained on, from exact labels:

    tokens per second   Σ E_a / Σ T_a over the roots, a the policy's choice: long-run throughput is a ratio of sums
    static              the best static action of the root's sampling setting
    selector            the network's choices, each with the time it takes to choose; untrusted roots are static
    oracle              argmax_a E_a - ρ T_a at every root, ρ its own throughput, with the time it takes to choose

Choices are made at mean prices, as in decoding, and scored with the nodes of the root's own trees. A maximum over noisy labels is
biased upwards, so the oracle chooses on all draws of a root but one and is scored on that one, each in turn, or static where that
is better: a lower bound of what a perfect choice brings (``oracle``). Chosen and scored on all draws, at the roots' own prices
and in each part for itself, it is an upper bound (``oracle_same_draws``). Intervals by bootstrap over documents. Shape suffixes:
N roots, D draws, A actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger

from predictors.config import Checked, Count, not_empty
from predictors.latency.profile import LatencyProfile
from predictors.schema import SPLITS
from predictors.training.intervals import DocumentBootstrap, percentiles
from predictors.training.labelling import TREES
from predictors.training.predictor import Fitted, Materials, Trust, card_of, told
from predictors.training.tables import RootTable
from predictors.training.tree_training import (
    SCORED,
    THROUGHPUT,
    Candidate,
    Judged,
    Labelling,
    Outcome,
    SelectorConfig,
    SelectorRows,
    at,
    fit_selector,
)
from predictors.tree_choice import NEVER, RATIO, SURPLUS, SelectionRule, SelectorNetwork

RATE_FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
MARGINS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
ORACLE_STEPS = 20


@dataclass(frozen=True)
class RuleCalibration(Trust):
    """Calibration of a rule on validation roots; ``bootstrap_replicates`` for intervals."""

    bootstrap_replicates: Count = 2000
    seed: int = 0


@torch.inference_mode()
def judged(network: SelectorNetwork, rows: SelectorRows) -> Judged:
    """Predict expected tokens [N, A] and squared distances [N] of rows."""
    logs_NA, distance_N = network.judged(rows.features)
    return logs_NA.double().exp().numpy(), distance_N.double().numpy()


def calibrated_rule(
    said: Judged, labelling: Labelling, validation: SelectorRows, scores: Sequence[str], config: RuleCalibration
) -> tuple[SelectionRule, float]:
    """Choose score, rate factor and margin by tokens per second on validation roots (of equals the largest margin), with the
    trusted distance; also return the gain over the static choice there. Where it is not surely one, no network is run: 0."""
    limit = config.largest(said[1])
    factors = {SURPLUS: RATE_FACTORS, RATIO: (1.0,)}
    tried = [(score, factor, margin) for score in scores for factor in factors[score] for margin in MARGINS]
    rules = [SelectionRule(*made, limit, labelling.settings) for made in [*tried, (SURPLUS, 1.0, NEVER)]]
    outcomes = [validation.chosen(said, rule) for rule in rules]
    best = max(range(len(rules)), key=lambda place: (outcomes[place].throughput, rules[place].margin))
    bootstrap = DocumentBootstrap(validation.table.column("document"), config.bootstrap_replicates, config.seed)
    speed, static = (bootstrap.ratio(one.tokens, one.seconds) for one in (outcomes[best], outcomes[-1]))
    gain = outcomes[best].throughput / outcomes[-1].throughput - 1
    low = percentiles(gain, speed / static - 1)["low"]
    return (rules[best], gain) if low is not None and low > 0 else (rules[-1], 0.0)


def oracle_places(efficiency_NA: np.ndarray, seconds_NA: np.ndarray) -> np.ndarray:
    """Find argmax_a E_a - ρ T_a [N], ρ the throughput of these very choices: the most that any choice per root can reach."""
    places_N = (efficiency_NA / seconds_NA).argmax(axis=1)
    for _ in range(ORACLE_STEPS):
        rate = at(efficiency_NA, places_N).sum() / at(seconds_NA, places_N).sum()
        better_N = (efficiency_NA - rate * seconds_NA).argmax(axis=1)
        if (better_N == places_N).all():
            break
        places_N = better_N
    return places_N


def split_oracle(rows: SelectorRows) -> Outcome | None:
    """Choose on all draws but one and score on that one, each in turn; ``None`` with a single draw."""
    draws = rows.efficiency_NDA.shape[1]
    if draws < 2:
        return None
    tokens, seconds = np.zeros(len(rows)), np.zeros(len(rows))
    for left_out in range(draws):
        others = np.delete(rows.efficiency_NDA, left_out, axis=1).mean(axis=1)
        places_N = oracle_places(others, rows.seconds_NA)
        tokens += at(rows.efficiency_NDA[:, left_out], places_N) / draws
        seconds += at(rows.spent_NA, places_N) / draws
    return Outcome(tokens, seconds + rows.decision)


def hindsight(rows: SelectorRows, mask_N: np.ndarray) -> Outcome:
    """Choose by the labels of the roots of ``mask_N`` together, the most that choices can bring: not to choose is a choice
    there, too, which takes no time. Static elsewhere."""
    static = rows.static
    tokens_NA = np.column_stack([static.tokens, rows.efficiency_NA])
    seconds_NA = np.column_stack([static.seconds, rows.spent_NA + rows.decision])
    places_N = np.zeros(len(rows), dtype=int)
    places_N[mask_N] = oracle_places(tokens_NA[mask_N], seconds_NA[mask_N])
    return Outcome(at(tokens_NA, places_N), at(seconds_NA, places_N))


def evaluate_selector(
    said: Judged, labelling: Labelling, rule: SelectionRule, test: SelectorRows, config: RuleCalibration
) -> dict[str, Any]:
    """Measure every policy's block efficiency, tokens per second and gain with intervals, overall and by setting."""
    policies = {"static": test.static, "selector": test.chosen(said, rule)}
    split = split_oracle(test)
    if split is not None:
        policies["oracle"] = split
    documents = test.table.column("document")
    parts = {"all": np.ones(len(test), dtype=bool)} | test.by_setting
    return {
        "rule": labelling.rule,
        "score": rule.score,
        "rate_factor": rule.rate_factor,
        "margin": rule.margin,
        "trusted": float((said[1] <= rule.max_distance).mean()),
        "roots": len(test),
        "documents": len(set(documents.tolist())),
        "static_actions": {
            setting.sampling.name: labelling.actions[static.place].name
            for setting, static in zip(labelling.settings, labelling.statics(), strict=True)
        },
        "parts": {
            name: _measured(policies | {"oracle_same_draws": hindsight(test, mask)}, mask, documents, config)
            for name, mask in parts.items()
        },
    }


def _measured(
    policies: Mapping[str, Outcome], mask_N: np.ndarray, documents: np.ndarray, config: RuleCalibration
) -> dict[str, Any]:
    bootstrap = DocumentBootstrap(documents[mask_N], config.bootstrap_replicates, config.seed)
    roots = np.ones(int(mask_N.sum()))
    found = {name: outcome.at(mask_N) for name, outcome in policies.items()}
    if "oracle" in found:
        found["oracle"] = max(found["static"], found["oracle"], key=lambda one: one.throughput)
    speeds = {name: bootstrap.ratio(one.tokens, one.seconds) for name, one in found.items()}
    rates = {name: one.throughput for name, one in found.items()}
    record: dict[str, Any] = {
        name: {
            "block_efficiency": percentiles(float(one.tokens.mean()), bootstrap.ratio(one.tokens, roots)),
            "tokens_per_second": percentiles(rates[name], speeds[name]),
            "gain": percentiles(rates[name] / rates["static"] - 1, speeds[name] / speeds["static"] - 1),
        }
        for name, one in found.items()
    }
    return record


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
        table = roots.labelled(materials.labels_of(TREES, roots.manifest))
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
