"""The drafting policies a head is measured among: chosen on known rows, then replayed on others (`predictors.training.decision`).

head, baselines   their probabilities by a rule of the head's kind         head_argmax   the head by the argmax instead
confidence        draft while max_x q(x) >= ε                              best_static   always γ*
oracle            knows what will be accepted
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from predictors.decision_rule import DecisionRule, LengthRule
from predictors.training.baselines import Baseline
from predictors.training.bootstrap import DocumentBootstrap, interval
from predictors.training.decision import Costs, Play, Replay, worth
from predictors.training.label_table import LabelTable

Rule = DecisionRule | LengthRule
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Staged(Generic[Choice]):
    """What is chosen for drafting with the target idle, and for what is retained of a branch that survived; chains only draft."""

    draft: Choice
    retention: Choice


@dataclass(frozen=True)
class Policies:
    """``predictors`` (with one named ``head``) and their ``rules``, the confidence rule's ``epsilon``, the best ``static_gamma``,
    and the ``costs`` they were chosen for."""

    predictors: Mapping[str, Baseline]
    rules: Mapping[str, Staged[Rule]]
    epsilon: Staged[float]
    static_gamma: Staged[int]
    costs: Costs

    def plays(self, table: LabelTable) -> dict[str, Play]:
        """Every policy's choices in the rows of ``table``."""
        replay = replay_of(table, self.costs)

        def staged(play: Callable[[Choice], Play], choice: Staged[Choice]) -> Play:
            return replay.staged(play(choice.draft), play(choice.retention))

        def head(name: str, rules: Staged[Rule]) -> Play:
            probabilities, reads = self.predictors[name].predict(table), self.predictors[name].reads_first_law
            return staged(lambda rule: replay.head(probabilities, rule, reads), rules)

        rules = self.rules["head"]
        return {name: head(name, self.rules[name]) for name in self.predictors} | {
            "head_argmax": head("head", Staged(rules.draft.argmax, rules.retention.argmax)),
            "confidence": staged(replay.confidence, self.epsilon),
            "best_static": staged(replay.static, self.static_gamma),
            "oracle": replay.oracle(),
        }

    def values(self, table: LabelTable) -> dict[str, float]:
        """Tokens per target-pass equivalent of every policy."""
        replay = replay_of(table, self.costs)
        return {name: replay.value(play) for name, play in self.plays(table).items()}

    def resampled(self, table: LabelTable, bootstrap: DocumentBootstrap) -> dict[str, np.ndarray]:
        """Every policy's value in the replicates; those without a row of a stage say nothing of it and are left out."""
        replay, plays = replay_of(table, self.costs), self.plays(table)
        rows = bootstrap.sums(np.stack([~table.survived, table.survived], axis=1).astype(float))
        told = ((rows > 0) | ~np.array([(~table.survived).any(), table.survived.any()])).all(axis=1)
        return {name: worth(bootstrap.sums(replay.tally(play))[told]) for name, play in plays.items()}

    def measure(self, table: LabelTable, bootstrap: DocumentBootstrap) -> dict[str, Any]:
        """Values and gains over the best static γ with intervals over documents; ``length_accuracy`` is the share of rows in
        which a policy submits exactly the tokens that are accepted (SpecBranch, Fig. 3c); it and the counts per round are
        plain means over rows, whatever share a stage has in decoding."""
        replay, plays = replay_of(table, self.costs), self.plays(table)
        replicates = self.resampled(table, bootstrap)
        decision = {
            name: interval(replay.value(play), replicates[name])
            | {"submitted_per_round": float(play.submitted.mean()), "passes_per_round": float(play.passes.mean())}
            | {"length_accuracy": float((play.submitted == replay.useful).mean())}
            for name, play in plays.items()
        }
        static = replay.value(plays["best_static"])
        gains = {
            name: interval(replay.value(play) / static - 1, replicates[name] / replicates["best_static"] - 1)
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

    def best(replay: Replay, choices: Sequence[Choice], play: Callable[[Choice], Play]) -> Staged[Choice]:
        draft, retention = replay.best_pair([play(choice) for choice in choices])
        return Staged(choices[draft], choices[retention])

    def best_rule(predictor: Baseline) -> Staged[Rule]:
        probabilities = predictor.predict(validation)
        return best(rows, tried, lambda rule: rows.head(probabilities, rule, predictor.reads_first_law))

    return Policies(
        predictors=predictors,
        rules={name: best_rule(predictor) for name, predictor in predictors.items()},
        epsilon=best(rows, epsilons, rows.confidence),
        static_gamma=best(everything, range(rows.gamma + 1), everything.static),
        costs=costs,
    )


def replay_of(table: LabelTable, costs: Costs) -> Replay:
    """A table's rows, to replay up to the label's γ."""
    return Replay(table.accepted, table.confidence_NG[:, : table.metadata.gamma], table.survived, costs)
