"""Rules that a head is served with at one sampling setting, chosen by replayed tokens per second on validation texts; and what
they and the head's probabilities are worth on texts that chose nothing.

    static         the best length on training and validation texts; of branches, the best pair for drafting and for retention
    rule           the best candidate, where its gain out of fold is surely one (`training.predictor`); elsewhere static
    tried          the best candidate that runs the head, whether it pays or not

    head           what is served           head_argmax   the head's likeliest class instead (run, whether it pays or not)
    confidence     draft while max q >= ε   best_static   the best static length            oracle   knows what will be accepted

Of branches the rule for drafting is chosen first, then the one for retention with it, or with the static length; either may be
static. Both are chosen anew outside every fold. Baselines are predictors of the same classes that know almost nothing, fitted on
the same training rows:

    majority          the training shares, for every row
    previous_label    the training shares among rows whose previous round had the same class (add-one smoothed)
    draft_confidence  multinomial logistic regression on the first draft distribution's confidence and entropy
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Annotated, Any

import numpy as np

from predictors.config import Checked, Count, Probability, not_empty
from predictors.head import ARGMAX, EXPECTATION, DecisionRule, LengthRule
from predictors.replay.grid import Totals
from predictors.training.calibration import MacroAuc, evaluate, mean_absolute_error
from predictors.training.head_roots import RootRows, Target
from predictors.training.head_served import Choice, Rule, Served
from predictors.training.intervals import DocumentBootstrap, percentiles
from predictors.training.predictor import RuleChoice, choose_by, fastest, oracle, rate_of, table_of, tracked_name, worth

NEVER = 1.01  # a probability no class reaches
COST_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)  # of a drafted token, in the rule that weighs lengths
TRACKED = ("accuracy", "mean_absolute_error", "macro_f1", "macro_auc", "nll", "brier", "ece")
SHOWN = (*TRACKED, "macro_auc_interval", "auc")
Baseline = Callable[[RootRows], np.ndarray]  # probabilities [P, L] of rows


@dataclass(frozen=True)
class RuleCandidates(Checked):
    """Rules to try: ``epsilons``, confidence thresholds; ``probabilities``, H-RAD's thresholds of "none" and "all" besides the
    argmax (empty: argmax only). Their gain is judged out of so many ``folds`` of documents."""

    epsilons: Annotated[tuple[Probability, ...], not_empty] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    probabilities: tuple[Probability, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    folds: Count = 5
    seed: int = 0

    def rules(self, target: Target, draft_cost: float) -> list[Rule]:
        """List every rule tried for a head of that target, the argmax first."""
        if target.ordered:
            return [LengthRule(ARGMAX, draft_cost), *(LengthRule(EXPECTATION, draft_cost * by) for by in COST_FACTORS)]
        thresholds = (*self.probabilities, NEVER) if self.probabilities else ()
        pairs = [(None, None), *product(thresholds, repeat=2)]
        return [DecisionRule(epsilon, none, every) for epsilon in self.epsilons for none, every in pairs]


@dataclass(frozen=True)
class Chosen:
    """Rules that are served, each for drafting and for retention: ``static`` lengths, ``rules`` (``None``: static), the best
    rules ``tried`` that run the head; the best confidence ``epsilon``, and what choosing among rules gains out of fold."""

    static: tuple[int, int]
    rules: tuple[Rule | None, Rule | None]
    tried: tuple[Rule, Rule]
    epsilon: float
    choice: RuleChoice | None

    @property
    def policy(self) -> tuple[Choice, Choice]:
        """Choices that are served, for drafting and for retention: a rule each, or a static length."""
        drafted, retained = (
            length if rule is None else rule for length, rule in zip(self.static, self.rules, strict=True)
        )
        return drafted, retained


def static_pair(several: Sequence[Served]) -> tuple[int, int]:
    """Find the static lengths of most tokens per second over all texts; of equals the shortest. Chains retain as they draft."""
    depth = min(one.idle.depth for one in several)

    def rate(pair: tuple[int, int]) -> float:
        return rate_of(one.totals(*pair) for one in several)

    if several[0].branches is None:
        return max(((length, length) for length in range(depth + 1)), key=rate)
    draft = max(((length, depth) for length in range(depth + 1)), key=rate)[0]
    return max(((draft, length) for length in range(depth + 1)), key=rate)


def choose_rules(held: Served, rules: Sequence[Rule], candidates: RuleCandidates) -> Chosen:
    """Choose a head's rules on validation texts."""
    static, branches = held.static, held.branches is not None
    drafting_2RX = table_of(held.totals(rule, static[1] if branches else rule) for rule in rules)

    @cache  # at most once for every fold, and once for all
    def retention(drafting: int | None) -> np.ndarray:
        """Tabulate every rule for retention with one for drafting (``None``: the static length)."""
        choice = static[0] if drafting is None else rules[drafting]
        return table_of(held.totals(choice, rule) for rule in rules)

    def pick(mask_X: np.ndarray) -> tuple[tuple[Rule | None, Rule | None], np.ndarray]:
        """Pick the best rules for drafting and for retention (``None``: static), with their tokens and seconds."""
        best = fastest(drafting_2RX, mask_X)
        if not branches:
            return (rules[best], rules[best]), drafting_2RX[:, best]
        pairs: list[tuple[Rule | None, Rule | None]] = [(rules[best], None)]
        pairs += [(drafting, kept) for drafting in (rules[best], None) for kept in rules]
        table_2RX = np.hstack([drafting_2RX[:, best : best + 1], retention(best), retention(None)])
        number = fastest(table_2RX, mask_X)
        return pairs[number], table_2RX[:, number]

    document_X, every_X = held.idle.document_X, np.ones(drafting_2RX.shape[2], dtype=bool)
    choice = choose_by(pick, held.totals(*static).sums_2X, document_X, candidates.folds, candidates.seed)
    asks = [number for number, rule in enumerate(rules) if rule.settled is None]
    best = asks[fastest(drafting_2RX[:, asks], every_X)]
    kept = asks[fastest(retention(best)[:, asks], every_X)] if branches else best
    soft = [held.totals(float(epsilon), static[1] if branches else float(epsilon)) for epsilon in candidates.epsilons]
    epsilon = max(zip(soft, candidates.epsilons, strict=True), key=lambda one: one[0].rate)[1]
    served = choice.rule if choice.pays else (None, None)
    return Chosen(static, served, (rules[best], rules[kept]), epsilon, choice)


def fit_baselines(train: RootRows) -> dict[str, Baseline]:
    """Fit the baselines on training rows; return them by name."""
    labels, size = train.label_P, len(train.roots.target.classes)
    shares_L = np.bincount(labels, minlength=size) / len(train)
    counts = np.ones((size + 1, size))  # the last row: nothing is known of the round before
    np.add.at(counts, (_previous(train), labels), 1)
    following = counts / counts.sum(axis=1, keepdims=True)
    return {
        "majority": lambda rows: np.tile(shares_L, (len(rows), 1)),
        "previous_label": lambda rows: following[_previous(rows)],
        "draft_confidence": _draft_confidence(train),
    }


def _previous(rows: RootRows) -> np.ndarray:
    target = rows.roots.target
    return np.where(rows.past_P == 0, len(target.classes), target.of(rows.past_P - 1))


def _draft_confidence(train: RootRows) -> Baseline:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = train.label_P
    seen, one_hot_LL = np.unique(labels), np.eye(len(train.roots.target.classes))
    if len(seen) == 1:  # nothing to tell apart: a draft that is never, or always, accepted
        return lambda rows: one_hot_LL[np.full(len(rows), seen[0])]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(_first(train), labels)
    return lambda rows: model.predict_proba(_first(rows)) @ one_hot_LL[seen]  # 0 of classes without a training row


def _first(rows: RootRows) -> np.ndarray:
    roots = rows.roots
    return np.stack([roots.confidence_R[rows.row_P], roots.entropy_R[rows.row_P]], axis=1).astype(np.float64)


def measured_metrics(
    rows: RootRows, served: Served, baselines: Mapping[str, Baseline], replicates: int
) -> dict[str, dict[str, Any]]:
    """Measure the head, the same without calibration, and the baselines."""
    predicted = {"head": served.probabilities(rows), "head_uncalibrated": served.probabilities(rows, calibrated=False)}
    predicted |= {name: baseline(rows) for name, baseline in baselines.items()}
    bootstrap = DocumentBootstrap(rows.document_P, replicates, 0)
    found, target, label_P = {}, rows.roots.target, rows.label_P
    for name, probabilities_PL in predicted.items():
        record = evaluate(probabilities_PL, label_P, target.classes)
        if target.ordered:
            record["mean_absolute_error"] = mean_absolute_error(probabilities_PL, label_P)
        interval = percentiles(record["macro_auc"], bootstrap.each(MacroAuc(probabilities_PL, label_P)))
        found[name] = record | {"macro_auc_interval": interval}
    return found


def measured_policies(test: Served, chosen: Chosen) -> dict[str, Any]:
    """Measure every policy on test texts, with its gain over the best static one."""
    policies: dict[str, tuple[Choice, Choice]] = {
        "head": chosen.policy,
        "head_argmax": (chosen.tried[0].argmax, chosen.tried[1].argmax),
        "confidence": (chosen.epsilon, chosen.static[1]),
        "best_static": chosen.static,
    }
    totals = {name: test.totals(*policy) for name, policy in policies.items()}
    if test.branches is None:
        totals["oracle"] = oracle(test.idle)
    found = {name: worth(one, totals["best_static"], test.idle.document_X) for name, one in totals.items()}
    for name in policies:
        found[name]["length_accuracy"] = length_accuracy(test, totals[name])
    return found


def length_accuracy(test: Served, made: Totals) -> float:
    """Compute the share of rounds that submit exactly the tokens, of those of γ that may be drafted, that are accepted
    (SpecBranch, Fig. 3c)."""
    path = made.path
    assert path is not None, "rounds are known"
    cells = path.places[:2]
    cap_V = test.idle.cap_XS[cells]
    if test.retained is not None:
        cap_V = np.where(path.places[2] > 0, test.retained.cap_XS[cells], cap_V)
    best_V = np.minimum(np.minimum(test.idle.would_XS[cells], cap_V), test.roots.spec.gamma)
    return float((path.drafted[0] == best_V).mean())


def measured_quality(quality: Mapping[str, Any]) -> dict[str, Any]:
    """Select the quality that stands on a card. Above all settings stands the worst calibration error, which the gate judges."""
    parts = {
        name: {
            "metrics": {key: one["metrics"]["head"][key] for key in SHOWN if key in one["metrics"]["head"]},
            "policies": one["policies"],
        }
        for name, one in quality["parts"].items()
    }
    errors = [one["metrics"]["ece"] for one in parts.values()]
    sizes = {name: quality[name]["test"] for name in ("rows", "documents")}
    return {"split": "test", **sizes, "metrics": {"ece": max(errors)}, "parts": parts}


def tracked(quality: Mapping[str, Any]) -> dict[str, float | None]:
    """Flatten the metrics, each with its setting's name as trackers allow it."""
    found: dict[str, float | None] = {}
    for (name, one), setting in zip(quality["parts"].items(), quality["settings"], strict=True):
        made: dict[str, float | None] = {}
        for which, suffix in (("head", ""), ("head_uncalibrated", "_uncalibrated")):
            metrics = one["metrics"][which]
            made |= {f"test_{key}{suffix}": metrics[key] for key in TRACKED if key in metrics}
        made |= {f"test_tokens_per_second_{key}": worth["tokens_per_second"] for key, worth in one["policies"].items()}
        made["test_gain"] = one["policies"]["head"]["gain"]["value"]
        made["calibration_temperature"] = setting["calibration"]["temperature"]
        found |= {f"{key}/{tracked_name(name)}": value for key, value in made.items()}
    return found


def sentence(quality: Mapping[str, Any]) -> str:
    told = []
    for (name, one), setting in zip(quality["parts"].items(), quality["settings"], strict=True):
        gain, area = one["policies"]["head"]["gain"], one["metrics"]["head"]["macro_auc"]
        served = "its rule" if setting["rule"] or setting["retention"] else f"static {one['static_length']}"
        known = "undefined" if area is None else f"{area:.3f}"
        told.append(
            f"{name}: {served}, {gain['value']:+.1%} replayed tokens/s over the best static length, macro AUROC {known}"
        )
    return "; ".join(told)
