"""The drafting policies a head is measured among: chosen on known rows, then replayed on others (`predictors.training.decision`).

head, baselines   their probabilities by a rule of the head's kind         head_argmax   the head by the argmax instead
confidence        draft while max_x q(x) >= ε                              best_static   always γ*
oracle            knows what will be accepted
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from predictors.decision_rule import DecisionRule, LengthRule
from predictors.training.baselines import Baseline
from predictors.training.bootstrap import DocumentBootstrap, interval
from predictors.training.decision import Costs, Play, Replay
from predictors.training.label_table import LabelTable

Rule = DecisionRule | LengthRule


@dataclass(frozen=True)
class Policies:
    """``predictors`` (with one named ``head``) and their ``rules``, the confidence rule's ``epsilon``, the best ``static_gamma``,
    and the ``costs`` they were chosen for."""

    predictors: Mapping[str, Baseline]
    rules: Mapping[str, Rule]
    epsilon: float
    static_gamma: int
    costs: Costs

    def plays(self, table: LabelTable) -> dict[str, Play]:
        """Every policy's choices in the rows of ``table``."""
        replay = replay_of(table, self.costs)
        plays = {
            name: replay.head(predictor.predict(table), self.rules[name], predictor.reads_first_law)
            for name, predictor in self.predictors.items()
        }
        head = self.predictors["head"]
        return plays | {
            "head_argmax": replay.head(head.predict(table), self.rules["head"].argmax, head.reads_first_law),
            "confidence": replay.confidence(self.epsilon),
            "best_static": replay.static(self.static_gamma),
            "oracle": replay.oracle(),
        }

    def values(self, table: LabelTable) -> dict[str, float]:
        """Tokens per target-pass equivalent of every policy."""
        replay = replay_of(table, self.costs)
        return {name: replay.value(play) for name, play in self.plays(table).items()}

    def measure(self, table: LabelTable, bootstrap: DocumentBootstrap) -> dict[str, Any]:
        """Values and gains over the best static γ with intervals over documents; ``length_accuracy`` is the share of rows in
        which a policy submits exactly the tokens that are accepted (SpecBranch, Fig. 3c)."""
        replay, plays = replay_of(table, self.costs), self.plays(table)
        ratios = {name: bootstrap.ratio(replay.tokens(play), replay.cost(play)) for name, play in plays.items()}
        decision = {
            name: interval(replay.value(play), ratios[name])
            | {"submitted_per_round": float(play.submitted.mean()), "passes_per_round": float(play.passes.mean())}
            | {"length_accuracy": float((play.submitted == replay.useful).mean())}
            for name, play in plays.items()
        }
        static = replay.value(plays["best_static"])
        gains = {
            name: interval(replay.value(play) / static - 1, ratios[name] / ratios["best_static"] - 1)
            for name, play in plays.items()
        }
        values = [replay.value(replay.static(tokens)) for tokens in range(replay.gamma + 1)]
        return {"decision": decision, "gain_over_best_static": gains, "static_values": values}


def choose_policies(
    predictors: Mapping[str, Baseline],
    known: LabelTable,
    validation: LabelTable,
    tried: Sequence[Rule],
    epsilons: Sequence[float],
    costs: Costs,
) -> Policies:
    """What is worth most: the static γ on ``known`` rows, each predictor's rule and the confidence rule's ε on ``validation``
    rows; of equals the first, which for rules is the argmax."""
    rows, everything = replay_of(validation, costs), replay_of(known, costs)

    def best_rule(predictor: Baseline) -> Rule:
        probabilities = predictor.predict(validation)
        return max(tried, key=lambda rule: rows.value(rows.head(probabilities, rule, predictor.reads_first_law)))

    return Policies(
        predictors=predictors,
        rules={name: best_rule(predictor) for name, predictor in predictors.items()},
        epsilon=max(epsilons, key=lambda epsilon: rows.value(rows.confidence(epsilon))),
        static_gamma=max(range(rows.gamma + 1), key=lambda tokens: everything.value(everything.static(tokens))),
        costs=costs,
    )


def replay_of(table: LabelTable, costs: Costs) -> Replay:
    """A table's rows, to replay up to the label's γ."""
    return Replay(table.accepted, table.confidence_NG[:, : table.metadata.gamma], costs)
