"""What choosing a delayed tree at every root is worth: on exact labels of held-out documents, and on the clock.

    expected    Σ E / Σ T over roots: exact expectations, predicted seconds          (paper 004, Tables 4 to 7, as intervals)
    measured    tokens / seconds of real decodes, paired by block: prompt, setting and repeat that both arms decoded
    step        seconds of real rounds that drafted one action, and its price at the same contexts
    agreement   mean emitted tokens of real first rounds less the labels' expectation, paired by root

Intervals by bootstrap over documents.
"""

from typing import Any, Self

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipelines.measuring.selection.names import BUNDLE, SELECTOR, STATIC, STATIC_TREE
from pipelines.reporting.inputs import Inputs, Section
from pipelines.reporting.intervals import listed, percent, surely_above
from pipelines.reporting.measured_folder import with_settings
from pipelines.reporting.paired_arms import PairedArms
from pipelines.reporting.selection_folder import SelectionResults, read_selection
from pipelines.reporting.selection_plots import choices_by_slice, gains_by_rule
from pipelines.reporting.statistics import Interval
from predictors.rounds import PHASES

ARMS = {STATIC: STATIC_TREE, SELECTOR: BUNDLE}  # an arm is named so, then after its rule
WORTH_WINNING = 0.03  # a gap between static and a perfect choice below which there is nothing to win


class SelectionReport(Section):
    """Builds the records of ``quality.json`` (expectations) and ``timing.json`` (times)."""

    def __init__(self, results: SelectionResults, replicates: int, seed: int) -> None:
        self.results = results
        self.paired = PairedArms(results.measured, replicates, seed)
        timed = results.measured.test
        arms = [self.arm(policy, rule) for policy in ARMS for rule in results.records]
        self.settings = sorted(timed.loc[timed["arm"].isin(arms), "setting"].unique())

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        results = read_selection(inputs.of("selection"), inputs.fitted("tree"), inputs.measured)
        return None if results is None else cls(results, *inputs.drawn)

    def figures(self, quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        """What choosing is worth, and what is chosen."""
        return {"selection": gains_by_rule(quality, timing), "choices": choices_by_slice(quality)}

    def quality(self) -> dict[str, Any]:
        """Exact expectations by rule, how labels agree with real rounds, and what is chosen where."""
        records = self.results.records
        first = next(iter(records.values()))
        return {
            "rules": [self._expected(rule) for rule in records],
            "agreement": self._agreement(),
            "roots": first["roots"],
            "documents": first["documents"],
            "uses": {rule: record["uses"] for rule, record in records.items()},
        }

    def timing(self) -> dict[str, Any]:
        """Measured speeds by rule, the best selector against traversal, and how well steps are priced."""
        rules = [self._measured(rule) for rule in self.results.records]
        return {
            "rules": rules,
            "against_traversal": self._against_traversal(),
            "actions": (actions := self._actions()),
            "drift": actions[0]["drift"] if actions else None,
            "median_price_error": float(np.median([abs(row["beside_drift"]) for row in actions])) if actions else None,
            "prompts": int(self._timed()["prompt"].nunique()),
            "capped": self.results.capped,
        }

    def _expected(self, rule: str) -> dict[str, Any]:
        record = self.results.records[rule]
        part = record["parts"]["all"]
        oracle = part.get("oracle")
        row = {
            "rule": rule,
            "static_actions": record["static_actions"],
            "block_efficiency": {name: part[name]["block_efficiency"] for name in (STATIC, SELECTOR)},
            "tokens_per_second": {name: part[name]["tokens_per_second"] for name in (STATIC, SELECTOR)},
            "gain": part[SELECTOR]["gain"],
            "oracle_gain": None if oracle is None else oracle["gain"],
            "oracle_same_draws": part["oracle_same_draws"]["gain"],
            "gap_closed": part.get("gap_closed"),
            "margin": record["margin"],
            "trusted": record["trusted"],
            "candidate": record["candidate"],
            "candidates": record["candidates"],
        }
        worth = oracle is not None and oracle["gain"]["value"] >= WORTH_WINNING
        return row | {"worth_winning": worth, "nothing_to_win": row["oracle_same_draws"]["value"] < WORTH_WINNING}

    @staticmethod
    def arm(policy: str, rule: str) -> str:
        """The arm of a rule's selector, or of its static tree."""
        return ARMS[policy] + rule

    def _measured(self, rule: str) -> dict[str, Any]:
        selector, static = (self._timed(policy, rule) for policy in (SELECTOR, STATIC))
        deciding = "seconds_controller", "seconds_rounds"
        return {
            "rule": rule,
            **{policy: self._speed(policy, rule) for policy in ARMS},
            "gain": self._gain(rule, rule),
            "decision_share": self.paired.of(selector, *deciding),
            "hooks_share": self.paired.of(static, *deciding),
            "bypassed": float(selector["bypassed"].sum() / max(1, selector["rounds"].sum())),
        }

    def _speed(self, policy: str, rule: str) -> dict[str, Interval]:
        speed = self.paired.speed(self.arm(policy, rule), self.settings)
        return speed | {"block_efficiency": self.paired.of(self._timed(policy, rule), "emitted", "rounds")}

    def _gain(self, rule: str, other: str) -> Interval:
        """Of a rule's selector over the static tree of a rule."""
        return self.paired.gain(self.arm(SELECTOR, rule), self.arm(STATIC, other), self.settings)

    def _against_traversal(self) -> dict[str, Any] | None:
        """The node-by-node rule whose selector promised most on validation roots, over traversal with its best static tree."""
        records = self.results.records
        others = [rule for rule in records if rule not in ("traversal", "block")]
        if not others or "traversal" not in records:
            return None
        best = max(others, key=lambda rule: float(records[rule]["validation_tokens_per_second"]))
        return {"rule": best, "gain": self._gain(best, "traversal")}

    def _actions(self) -> list[dict[str, Any]]:
        """Measured and predicted seconds of a step, of arms that always draft one action. ``drift`` is the median error: how much
        faster (+) or slower (-) the machine ran than it was profiled; ``beside_drift`` is what is left of an action's."""
        rows = [self._step(*fixed) for fixed in self._fixed()]
        found = [row for row in rows if row is not None]
        drift = float(np.median([row["error"] for row in found])) if found else 0.0
        return [row | {"drift": drift, "beside_drift": (1 + row["error"]) / (1 + drift) - 1} for row in found]

    def _fixed(self) -> list[tuple[str, str, str, str]]:
        """Arms that draft one action, with action, rule and sampling setting: static trees, and static chains by block."""
        results = self.results
        found = [
            (self.arm(STATIC, rule), record["static_actions"][setting], rule, setting)
            for setting in self.settings
            for rule, record in results.records.items()
            if setting in record["static_actions"]
        ]
        chains = [action for action in results.actions.get("block", ()) if action in results.measured.families]
        return found + [(chain, chain, "block", setting) for setting in self.settings for chain in chains]

    def _step(self, arm: str, action: str, rule: str, setting: str) -> dict[str, Any] | None:
        """A step of ``action``, on average over its rounds that nothing cut short; ``None`` where it was not timed."""
        rounds = self.results.measured.rounds
        rounds = with_settings(rounds[(rounds["arm"] == arm) & ~rounds["prefill"]])
        rounds = rounds[rounds["setting"] == setting]
        whole = rounds[rounds["levels"] == rounds["levels"].max()]
        if whole.empty:
            return None
        prices_N = self.results.prices[rule].rows(whole["context"].to_numpy(float))
        predicted = float(prices_N[:, self.results.actions[rule].index(action)].mean())
        measured = float(whole[[f"seconds_{phase}" for phase in PHASES]].sum(axis=1).mean())
        times = {"predicted_ms": 1e3 * predicted, "measured_ms": 1e3 * measured}
        return {"action": action, "rule": rule, **times, "error": predicted / measured - 1}

    def _timed(self, policy: str | None = None, rule: str | None = None) -> pd.DataFrame:
        """Decodes of the arm of one policy and rule, or of all."""
        arms = [
            self.arm(one, name)
            for one in ARMS
            for name in self.results.records
            if policy in (None, one) and rule in (None, name)
        ]
        return pd.concat([self.paired.rows(arm, self.settings) for arm in arms]).reset_index()

    def _agreement(self) -> list[dict[str, Any]]:
        """By rule and action: labels, real rounds, and their paired difference."""
        found = []
        for (rule, action), part in self.results.first_rounds.groupby(["rule", "action"], sort=False):
            part = part.assign(roots=1.0, more=part["emitted"] - part["expected"])
            record = {name: self.paired.of(part, name, "roots") for name in ("expected", "emitted")}
            difference: Any = self.paired.of(part, "more", "roots")
            agrees = difference["low"] <= 0 <= difference["high"]
            found.append({"rule": rule, "action": action, **record, "difference": difference, "agrees": agrees})
        return found

    @staticmethod
    def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
        """What there was to win, what was won, and what the clock says."""
        rules = quality["rules"]
        sure = [row["rule"] for row in rules if surely_above(row["gain"])]
        found = [
            f"On exact labels of held-out documents the selector surely beats the best static tree with {listed(sure)}; with "
            f"{listed([row['rule'] for row in rules if row['rule'] not in sure])} it does not."
        ]
        worth = [row for row in rules if row["worth_winning"]]
        if worth:
            quarter = [row["rule"] for row in worth if row["gap_closed"] and row["gap_closed"]["value"] >= 0.25]
            found.append(
                f"A perfect choice per root would bring 3 % or more with {listed([row['rule'] for row in worth])} at least: the "
                f"selector closes a quarter of that gap or more with {listed(quarter)}."
            )
        nothing = [row["rule"] for row in rules if row["nothing_to_win"]]
        if nothing:
            found.append(
                f"With {listed(nothing)} even a perfect choice would bring less than 3 %: there is nothing to win."
            )
        gains = [f"{row['rule']} {percent(row['gain'])}" for row in timing["rules"]]
        found.append(f"On the clock, selectors over their rules' best static trees: {', '.join(gains)}.")
        against = timing["against_traversal"]
        if against is not None:
            found.append(
                f"The selector that promised most on validation roots, with {against['rule']}, against traversal with its best "
                f"static tree, on the clock: {percent(against['gain'])}."
            )
        return found
