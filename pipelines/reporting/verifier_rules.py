"""Verification rules against each other: in exact expectation at the same roots, and as arms of the measurement.

An arm is a shape and a rule; the family ``iid traversal`` is a rule on one kind of shapes, and ``chain`` is block verification.
Of a tree at a root, one target pass emits 1 + E[tau | tree] tokens. So a root is a decode of one pass that took one second, and
the same `Comparison` pairs rules by root there and by block on the clock.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.evidence.timed_blocks import setting_of
from pipelines.measuring.names import CHOICES, PLAIN, PROVENANCE
from pipelines.measuring.verifiers.table import ACCEPTANCE, FAMILIES, ROOTS
from pipelines.reporting.comparison import ALL, By, Comparison
from pipelines.outputs import read_json
from pipelines.reporting.measured_folder import Measured, with_settings
from pipelines.reporting.text import UNDEFINED, UNKNOWN, Interval, surely_above

BLOCK = "block"
SHOWN_FAMILIES = {"delayed": " (delayed)", "distinct": " (distinct)"}
Choice = dict[str, Any]


@dataclass(frozen=True)
class First:
    """The best rule by point estimate, its ``value``, and the others: surely ``worse``, or ``tied`` with it."""

    name: str
    value: Interval
    worse: list[str]
    tied: list[str]


@dataclass(frozen=True)
class Rules:
    """``exact`` expectations at roots; decodes with the shapes that were best there on validation prompts (``decoded``) and with
    those that were fastest (``timed``); ``names`` of rules by family; ``acceptance`` by depth; ``capped``: time ran out."""

    exact: Comparison
    decoded: Comparison
    timed: Comparison
    names: dict[str, str]
    acceptance: pd.DataFrame
    capped: bool

    @property
    def places(self) -> dict[str, tuple[str]]:
        """Rows of a table: rules by name."""
        return {name: (family,) for family, name in self.names.items()}

    def expected(self, arm: str, by: By = ALL) -> Interval:
        """Exact block efficiency of an arm, or of a rule at its best shapes."""
        return self.exact.rate(arm, "tokens", "seconds", by)

    def kept(self, arm: str, by: By = ALL) -> Interval:
        """Emitted / target passes of real decodes, without the prefill."""
        return self.decoded.rate(arm, "emitted", "rounds", by)

    def most_efficient(self, by: By = ALL) -> First:
        return self._first(self.exact, {family: self.expected(family, by) for family in self.names}, by)

    def fastest(self, by: By = ALL) -> First:
        return self._first(self.timed, {family: self.timed.speedup(family, PLAIN, by) for family in self.names}, by)

    def _first(self, compared: Comparison, values: dict[str, Interval], by: By) -> First:
        known = {family: value for family, value in values.items() if value["value"] is not None}
        if not known:
            return First(UNKNOWN, dict(UNDEFINED), [], [])
        best = max(known, key=lambda family: known[family]["value"] or 0.0)
        over = {self.names[one]: compared.speedup(best, one, by) for one in known if one != best}
        apart = {name: surely_above(ratio, 1) for name, ratio in over.items() if ratio["value"] is not None}
        worse, tied = ([name for name, surely in apart.items() if surely == kind] for kind in (True, False))
        return First(self.names[best], known[best], worse, tied)


def read_rules(folder: Path, measured: Measured) -> Rules | None:
    """What ``folder`` says of one device, with the decodes ``measured`` there; ``None`` where there is no finished comparison.

    Raises
    ------
    ValueError
        If none of its shapes and rules was timed.
    """
    if not (folder / PROVENANCE).is_file():
        return None
    roots, acceptance = (pd.read_parquet(folder / name) for name in (ROOTS, ACCEPTANCE))
    record = read_json(folder / CHOICES)
    best = [
        {"setting": made["setting"], "family": ruled(made["family"], rule), "arm": ruled(made["drafter"], rule)}
        for made, rule in ((made, made["verifier"]) for made in record["choices"])
    ]
    parts = list(dict.fromkeys(roots[["family", "verifier"]].itertuples(index=False, name=None)))
    competing = [(family, rule) for name in FAMILIES for family, rule in parts if family == name]
    roots = roots.assign(
        arm=[ruled(shape, rule) for shape, rule in zip(roots["drafter"], roots["verifier"], strict=True)],
        repeat=roots["root"],
        tokens=roots["expected"],
        seconds=1.0,
    )
    timed = _timed(measured, roots)
    if timed.test.empty:
        raise ValueError(
            f"no arm of {folder} was timed: give section measure an arm SHAPE RULE for each of its shapes."
        )
    fastest = _fastest(measured.findings["choices"], set(roots["arm"]))
    return Rules(
        Comparison(Measured(roots, measured.rounds, {"choices": best}, measured.origin)),
        Comparison(_choosing(timed, best)),
        Comparison(_choosing(timed, [*best, *fastest])),
        {ruled(family, rule): f"{rule}{SHOWN_FAMILIES.get(family, '')}" for family, rule in competing},
        acceptance,
        record["capped"] or measured.findings["capped"],
    )


def ruled(name: str, rule: str) -> str:
    """The arm of a shape, or the family of a kind of shapes, with its rule."""
    return name if rule == BLOCK else f"{name} {rule}"


def _timed(measured: Measured, roots: pd.DataFrame) -> Measured:
    """Decodes of the roots' shapes and rules at the roots' settings, and plain decoding's of the same blocks."""
    rows = with_settings(measured.decodes)
    rows = rows[rows["setting"].isin(roots["setting"].unique())]
    own = rows[rows["arm"].isin(roots["arm"].unique())]
    plain = rows[(rows["arm"] == PLAIN) & rows["block"].isin(own["block"])]
    return replace(measured, decodes=pd.concat([own, plain]))


def _fastest(choices: list[Choice], arms: set[str]) -> list[Choice]:
    """The shapes that were fastest on validation prompts, of those that are compared."""
    found = []
    for choice in choices:
        speeds = {arm: speed for arm, speed in choice["tokens_per_second"].items() if arm in arms}
        if speeds:
            arm = max(speeds, key=speeds.__getitem__)
            found.append({"setting": setting_of(choice), "family": choice["family"], "arm": arm})
    return found


def _choosing(measured: Measured, choices: list[Choice]) -> Measured:
    return replace(measured, findings={**measured.findings, "choices": choices})
