"""What choosing a delayed tree at every root is worth: on exact labels of held-out documents, and on the clock.

    expected    Σ E / Σ T over roots: exact expectations, predicted seconds          (paper 004, Tables 4 to 7, as intervals)
    measured    tokens / seconds of real decodes, interleaved and paired by prompt
    agreement   mean emitted tokens of real first rounds less the labels' expectation, paired by root

Intervals by bootstrap over documents.
"""

from typing import Any

import numpy as np
import pandas as pd

from pipelines.measuring.names import PLAIN
from pipelines.measuring.selection.names import ACTION, SELECTOR, STATIC
from pipelines.reporting.selection_folder import SelectionResults
from pipelines.reporting.statistics import Interval, PairedBootstrap, less_one

WORTH_WINNING = 0.03  # a gap between static and a perfect choice below which there is nothing to win


class SelectionReport:
    """Builds the records of ``quality.json`` (expectations) and ``timing.json`` (times)."""

    def __init__(self, results: SelectionResults, replicates: int, seed: int) -> None:
        self.results = results
        self.replicates = replicates
        self.seed = seed

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
            "prompts": int(self.results.decoding["prompt"].nunique()),
            "capped": self.results.origin["capped"],
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

    def _measured(self, rule: str) -> dict[str, Any]:
        arms = {family: self._arm(family, rule) for family in (STATIC, SELECTOR)}
        plain = self._arm(PLAIN, PLAIN)
        bootstrap = self._bootstrap(plain)
        speeds = {
            family: {
                "tokens_per_second": bootstrap.rate(arm["tokens"], arm["seconds"]),
                "speedup": bootstrap.rate_ratio(arm["tokens"], arm["seconds"], plain["tokens"], plain["seconds"]),
                "block_efficiency": bootstrap.rate(arm["emitted"], arm["rounds"]),
            }
            for family, arm in arms.items()
        }
        selector, static = arms[SELECTOR], arms[STATIC]
        ratio = bootstrap.rate_ratio(selector["tokens"], selector["seconds"], static["tokens"], static["seconds"])
        share = bootstrap.rate(selector["seconds_controller"], selector["seconds_rounds"])
        hooks = bootstrap.rate(static["seconds_controller"], static["seconds_rounds"])
        bypassed = float(selector["bypassed"].sum() / max(1, selector["rounds"].sum()))
        record = {"rule": rule, **speeds, "gain": less_one(ratio), "decision_share": share, "hooks_share": hooks}
        return record | {"bypassed": bypassed}

    def _against_traversal(self) -> dict[str, Any] | None:
        """The node-by-node rule whose selector promised most on validation roots, over traversal with its best static tree."""
        records = self.results.records
        others = [rule for rule in records if rule not in ("traversal", "block")]
        if not others or "traversal" not in records:
            return None
        best = max(others, key=lambda rule: float(records[rule]["validation_tokens_per_second"]))
        ours, traversal = self._arm(SELECTOR, best), self._arm(STATIC, "traversal")
        ratio = self._bootstrap(ours).rate_ratio(
            ours["tokens"], ours["seconds"], traversal["tokens"], traversal["seconds"]
        )
        return {"rule": best, "gain": less_one(ratio)}

    def _actions(self) -> list[dict[str, Any]]:
        """Measured and predicted seconds of a step by action, on the prompts that ran them all. ``drift`` is the median error:
        how much faster (+) or slower (-) the machine ran than it was profiled; ``beside_drift`` is what is left of an action's.
        """
        decoding = self.results.decoding
        rows = decoding[decoding["family"] == ACTION]
        found: list[dict[str, Any]] = []
        for (rule, name), part in rows.groupby(["verifier", "drafter"], sort=False):
            place = self.results.actions[str(rule)].index(str(name))
            middle = part["prompt_tokens"] + part["tokens"] / 2
            prices_N = self.results.prices[str(rule)].rows(middle.to_numpy(float))[:, place]
            predicted = float((prices_N * part["rounds"]).sum() / part["rounds"].sum())
            measured = float(part["seconds_rounds"].sum() / part["rounds"].sum())
            times = {"predicted_ms": 1e3 * predicted, "measured_ms": 1e3 * measured}
            found.append({"action": name, "rule": rule, **times, "error": predicted / measured - 1})
        drift = float(np.median([row["error"] for row in found])) if found else 0.0
        return [row | {"drift": drift, "beside_drift": (1 + row["error"]) / (1 + drift) - 1} for row in found]

    def _agreement(self) -> list[dict[str, Any]]:
        """By rule and action: labels, real rounds, and their paired difference."""
        found = []
        for (rule, action), part in self.results.rounds.groupby(["rule", "action"], sort=False):
            bootstrap, ones = self._bootstrap(part), np.ones(len(part))
            difference: Interval = bootstrap.rate(part["emitted"] - part["expected"], ones)
            assert difference["low"] is not None and difference["high"] is not None
            record = {name: bootstrap.rate(part[name], ones) for name in ("expected", "emitted")}
            agrees = difference["low"] <= 0 <= difference["high"]
            found.append({"rule": rule, "action": action, **record, "difference": difference, "agrees": agrees})
        return found

    def _arm(self, drafter: str, verifier: str) -> pd.DataFrame:
        decoding = self.results.decoding
        rows = decoding[(decoding["drafter"] == drafter) & (decoding["verifier"] == verifier)]
        return rows.sort_values(["setting", "prompt"]).reset_index(drop=True)

    def _bootstrap(self, items: pd.DataFrame) -> PairedBootstrap:
        return PairedBootstrap(list(items["document"]), self.replicates, self.seed)


def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
    """What there was to win, what was won, and what the clock says."""
    rules = quality["rules"]
    sure = [row["rule"] for row in rules if row["gain"]["low"] > 0]
    found = [
        f"On exact labels of held-out documents the selector surely beats the best static tree with {_listed(sure)}; with "
        f"{_listed([row['rule'] for row in rules if row['rule'] not in sure])} it does not."
    ]
    worth = [row for row in rules if row["worth_winning"]]
    if worth:
        quarter = [row["rule"] for row in worth if row["gap_closed"] and row["gap_closed"]["value"] >= 0.25]
        found.append(
            f"A perfect choice per root would bring 3 % or more with {_listed([row['rule'] for row in worth])} at least: the "
            f"selector closes a quarter of that gap or more with {_listed(quarter)}."
        )
    nothing = [row["rule"] for row in rules if row["nothing_to_win"]]
    if nothing:
        found.append(
            f"With {_listed(nothing)} even a perfect choice would bring less than 3 %: there is nothing to win."
        )
    gains = [f"{row['rule']} {_percent(row['gain'])}" for row in timing["rules"]]
    found.append(f"On the clock, selectors over their rules' best static trees: {', '.join(gains)}.")
    against = timing["against_traversal"]
    if against is not None:
        found.append(
            f"The selector that promised most on validation roots, with {against['rule']}, against traversal with its best "
            f"static tree, on the clock: {_percent(against['gain'])}."
        )
    return found


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _percent(value: Interval) -> str:
    return f"{value['value']:+.1%} ({value['low']:+.1%} to {value['high']:+.1%})"
