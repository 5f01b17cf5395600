"""What the comparison of verification rules says, with 95 % intervals over documents.

    expected     mean over matched roots of the exact 1 + E[tau | tree]
    decoded      emitted / target passes of real decodes                  (another sample of roots: where rounds began)
    speed        ratio of tokens / seconds to plain decoding's on the blocks (prompt, setting, repeat) that both decoded, and
                 that ratio times plain decoding's own pace on all of them

A rule stands for the shape that was best for it on validation prompts, at each sampling setting; ratios of two rules are paired
by root, or by block where both were timed. Two rules are *told apart* when the interval of their ratio excludes 1.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self

import pandas as pd
from matplotlib.figure import Figure

from pipelines.measuring.verifiers.names import BLOCK_EFFICIENCY, FAMILIES, TOKENS_PER_SECOND
from pipelines.reporting.inputs import Inputs, Section
from pipelines.reporting.intervals import listed
from pipelines.reporting.statistics import UNDEFINED, Interval, PairedBootstrap
from pipelines.reporting.verifier_folder import Rule, VerifierComparison, read_comparison, rule_name
from pipelines.reporting.verifier_plots import acceptance_by_depth, block_efficiency_by_rule

VERIFY = "seconds_verify"


class VerifierReport(Section):
    """Builds the records of ``quality.json`` (counts and expectations) and ``timing.json`` (times)."""

    def __init__(self, comparison: VerifierComparison, replicates: int, seed: int) -> None:
        self.comparison = comparison
        self.replicates = replicates
        self.seed = seed
        self._bootstraps: dict[tuple[str, ...], PairedBootstrap] = {}

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        comparison = read_comparison(inputs.of("verifiers"), inputs.measured)
        return None if comparison is None else cls(comparison, *inputs.drawn)

    def figures(self, quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        """Block efficiency by rule, and acceptance by depth."""
        return {"verifiers": block_efficiency_by_rule(quality), "acceptance": acceptance_by_depth(quality)}

    def quality(self) -> dict[str, Any]:
        """Expectations and counts of every rule at its shape of best block efficiency."""
        comparison = self.comparison
        return {
            "settings": [{"setting": name, "rules": self.block_efficiencies([name])} for name in comparison.settings],
            "pooled": self.block_efficiencies(comparison.settings),
            "winner": self.winner(BLOCK_EFFICIENCY, comparison.settings),
            "acceptance": self.acceptance(),
            "roots": len(comparison.roots[["setting", "prompt", "root"]].drop_duplicates()),
            "documents": int(comparison.roots["document"].nunique()),
            "capped": comparison.capped,
        }

    def timing(self) -> dict[str, Any]:
        """Speed of every rule at its fastest shape."""
        comparison = self.comparison
        timed = comparison.timed_settings
        return {
            "settings": [{"setting": name, "rules": self.speeds([name])} for name in timed],
            "pooled": self.speeds(timed),
            "winner": self.winner(TOKENS_PER_SECOND, timed),
            "prompts": int(comparison.decoding["prompt"].nunique()),
            "documents": int(comparison.decoding["document"].nunique()),
        }

    def block_efficiencies(self, settings: Iterable[str], slice_: str | None = None) -> list[dict[str, Any]]:
        """One row per rule."""
        settings = list(settings)
        timed = [name for name in settings if name in self.comparison.timed_settings]
        return [
            {**_names(rule), "drafters": self._chosen(BLOCK_EFFICIENCY, settings, rule)}
            | {"expected": self.rate(self.items(BLOCK_EFFICIENCY, settings, rule, self.comparison.expected, slice_))}
            | {"decoded": self._decoded(timed, rule, slice_)}
            for rule in self._competing()
        ]

    def speeds(self, settings: Iterable[str], slice_: str | None = None) -> list[dict[str, Any]]:
        """One row per rule."""
        settings = list(settings)
        plain = self._plain(settings, slice_)
        rows = []
        for rule in self._competing():
            items = self.items(TOKENS_PER_SECOND, settings, rule, self.comparison.timed, slice_)
            verify = self.items(TOKENS_PER_SECOND, settings, rule, self._verify_items, slice_)
            record = {"tokens_per_second": self.pace(items, plain), "speedup": self.ratio(items, plain)}
            record |= {"verify_share": self.rate(verify)}
            rows.append({**_names(rule), "drafters": self._chosen(TOKENS_PER_SECOND, settings, rule), **record})
        return rows

    def winner(self, measure: str, settings: Iterable[str], slice_: str | None = None) -> dict[str, Any]:
        """The best rule by point estimate; ``tied`` are those that their ratio to it does not tell apart."""
        settings = list(settings)
        table = {BLOCK_EFFICIENCY: self.comparison.expected, TOKENS_PER_SECOND: self.comparison.timed}[measure]
        items = {rule: self.items(measure, settings, rule, table, slice_) for rule in self._competing()}
        plain = self._plain(settings, slice_) if measure == TOKENS_PER_SECOND else None
        values = {rule: self.rate(some) if plain is None else self.pace(some, plain) for rule, some in items.items()}
        best = max(values, key=lambda rule: values[rule]["value"] or 0.0)
        ratios = {rule: self.ratio(items[best], other) for rule, other in items.items() if rule != best}
        return {
            "name": rule_name(best),
            "value": values[best],
            "tied": [rule_name(rule) for rule, ratio in ratios.items() if (ratio["low"] or 0.0) <= 1],
        }

    def acceptance(self) -> list[dict[str, Any]]:
        """Acceptance rate by solver, number of draws and depth, and the distributions' distance there; all settings together."""
        rows = []
        groups: Any = self.comparison.acceptance.groupby(["solver", "draws", "depth"])
        for (solver, draws, depth), part in groups:
            bootstrap = self.bootstrap(part["document"])
            means = {name: bootstrap.rate(part[name] * part["paths"], part["paths"]) for name in ("rate", "distance")}
            rows.append({"solver": solver, "draws": int(draws), "depth": int(depth), **means})
        return rows

    def items(
        self, measure: str, settings: Iterable[str], rule: Rule, table: Callable[..., pd.DataFrame], slice_: str | None
    ) -> pd.DataFrame:
        """Items of a rule over several settings, each with the shape chosen there by ``measure``."""
        parts = [table(name, self.comparison.chosen(measure, name, rule), rule[1]) for name in settings]
        return _sliced(pd.concat(parts), slice_)

    def rate(self, items: pd.DataFrame) -> Interval:
        """Σ amount / Σ cost."""
        return self.bootstrap(items["document"]).rate(items["amount"], items["cost"])

    def ratio(self, items: pd.DataFrame, others: pd.DataFrame) -> Interval:
        """Rate of ``items`` over the rate of ``others``, on what they share; undefined where that is nothing."""
        shared = items.index.intersection(others.index).sort_values()
        if shared.empty:
            return dict(UNDEFINED)
        items, others = items.loc[shared], others.loc[shared]
        bootstrap = self.bootstrap(items["document"])
        return bootstrap.rate_ratio(items["amount"], items["cost"], others["amount"], others["cost"])

    def pace(self, items: pd.DataFrame, plain: pd.DataFrame) -> Interval:
        """Tokens per second as if the arm had decoded every block of ``plain`` decoding."""
        if items.empty:
            return dict(UNDEFINED)
        made = items[["amount", "cost"]].reindex(plain.index).fillna(0.0)
        shared = plain.index.isin(items.index)
        arm, base = ((rows["amount"], rows["cost"]) for rows in (made, plain))
        return self.bootstrap(plain["document"]).rate_over_all(arm, base, shared)

    def bootstrap(self, documents: pd.Series) -> PairedBootstrap:
        """The bootstrap over these documents; the same replicates wherever the items are the same."""
        key = tuple(documents)
        if key not in self._bootstraps:
            self._bootstraps[key] = PairedBootstrap(key, self.replicates, self.seed)
        return self._bootstraps[key]

    def _competing(self) -> list[Rule]:
        """Rules with a shape at every setting that are compared with each other: all families but those of a study's own."""
        return [rule for rule in self.comparison.rules if rule[0] in FAMILIES]

    def _chosen(self, measure: str, settings: list[str], rule: Rule) -> list[str]:
        return list(dict.fromkeys(self.comparison.chosen(measure, name, rule) for name in settings))

    def _decoded(self, settings: list[str], rule: Rule, slice_: str | None) -> Interval | None:
        if not settings:
            return None
        return self.rate(self.items(BLOCK_EFFICIENCY, settings, rule, self.comparison.decoded, slice_))

    def _plain(self, settings: Iterable[str], slice_: str | None) -> pd.DataFrame:
        return _sliced(pd.concat([self.comparison.plain(name) for name in settings]), slice_)

    def _verify_items(self, setting: str, drafter: str, verifier: str) -> pd.DataFrame:
        return self.comparison.timed(setting, drafter, verifier, VERIFY)

    @staticmethod
    def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
        """Which rule wins, and which ones the data do not tell apart from it."""
        efficiency = _win(quality["winner"], "tokens per target pass", ".2f")
        return [f"By exact block efficiency {efficiency}; by speed {_win(timing['winner'], 'tokens/s', '.0f')}."]


def _win(winner: dict[str, Any], unit: str, form: str) -> str:
    value, tied = winner["value"], winner["tied"]
    text = f"{winner['name']} is first ({value['value']:{form}} {unit}, {value['low']:{form}}–{value['high']:{form}})"
    return f"{text}, {'but the data do not tell it apart from ' + listed(tied) if tied else 'told apart from every other rule'}"


def _names(rule: Rule) -> dict[str, str]:
    return {"family": rule[0], "verifier": rule[1], "name": rule_name(rule)}


def _sliced(items: pd.DataFrame, slice_: str | None) -> pd.DataFrame:
    return items if slice_ is None else items[items["slice"] == slice_]
