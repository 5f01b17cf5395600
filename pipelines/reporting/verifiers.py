"""Section ``verifiers``: how many drafted tokens every verification rule keeps, and how fast it decodes.

Block efficiency is exact, the mean of 1 + E[tau | tree] over matched roots, or decoded, emitted / target passes of real decodes.

An arm is a shape and a rule; the family ``iid traversal`` is a rule on one kind of shapes, and ``chain`` is block verification.
Of a tree at a root, one target pass emits 1 + E[tau | tree] tokens. So a root is a decode of one pass that took one second, and
the same `Comparison` pairs rules by root there and by block on the clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.evidence.timed_blocks import setting_of
from pipelines.measuring.names import CHOICES, PLAIN, PROVENANCE
from pipelines.measuring.tables import ACCEPTANCE, AS_DRAFTED, FAMILIES, ROOTS
from pipelines.outputs import read_json
from pipelines.reporting.comparison import ALL, By, Comparison, across, rate
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.measured_folder import KEY, Measured, with_settings
from pipelines.reporting.plots import curves, picture, whiskers
from pipelines.reporting.section import EFFICIENCY, SPEEDUP, Cell, Metric, Section, Table, grid
from pipelines.reporting.text import NUMBER, TIMES, UNDEFINED, UNKNOWN, Interval, shown, surely_above

BLOCK = "block"
EXACT = f"{EFFICIENCY}, exact"
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


def section(inputs: Inputs) -> Section | None:
    """``None`` where rules were not compared."""
    rules = read_rules(inputs.of("verifiers"), inputs.measured)
    return None if rules is None else of_rules(rules)


def of_rules(rules: Rules) -> Section:
    """What a comparison says."""
    roots, efficient, fast = rules.exact.measured.test, rules.most_efficient(), rules.fastest()
    count, documents = len(roots[KEY].drop_duplicates()), roots["document"].nunique()
    notes = (
        f"Exact block efficiency comes from the same trees for every rule, at {count} roots of {documents} documents. "
        "Decoded counts real rounds, the last of which the budget cuts short. Shapes were chosen on validation prompts.",
        "Every rule is lossless. Chains have one path; iid-3x4 has 3 paths of 4 tokens; delayed-3.1.3 parts "
        "after one token; distinct shapes draw without replacement. hsd is block, and match is nss, under another name.",
    )
    settings = {setting: By(setting) for setting in rules.exact.measured.settings}
    values: dict[str, Metric] = {
        "Block efficiency, exact": rules.expected,
        "Speed-up over plain decoding": rules.timed.speedup,
    }
    panels = [grid("rule", rules.places, across(value, settings), caption) for caption, value in values.items()]
    label = "times plain decoding"
    return Section(
        "verifiers",
        "Which verification rule",
        f"By exact block efficiency {_leads(efficient, NUMBER)}; by speed {_leads(fast, TIMES)}.",
        [rule_table(rules, efficient, fast)],
        [
            picture("verifiers", "Every rule at its best shape.", whiskers, panels, [*settings], label, 1.0),
            picture("acceptance", "How often rules stay on the tree, by depth.", curves, acceptance(rules)),
        ],
        (*notes, *(["The time cap ended this comparison early."] if rules.capped else [])),
    )


def rule_table(rules: Rules, efficient: First, fast: First) -> Table:
    """Every rule over all settings; those that lead are marked."""

    def below(family: str) -> str | None:
        worse = {"efficiency": efficient.worse, "speed": fast.worse}
        return ", ".join(by for by, names in worse.items() if rules.names[family] in names) or None

    columns: dict[str, Metric] = {
        "shapes": partial(_shapes, rules),
        EXACT: rules.expected,
        "decoded": rules.kept,
        **rules.timed.metrics(SPEEDUP, "time verifying"),
        "surely below the leader in": below,
    }
    return grid("rule", rules.places, columns, "All sampling settings", marked={efficient.name, fast.name})


def acceptance(rules: Rules) -> list[Table]:
    """By depth of a node: how often the per-node solvers stay on the tree, by number of draws, and the distance ‖p − q‖₁."""
    means: dict[str, dict[int, dict[int, dict[str, Cell]]]] = {"rate": {}, "distance": {}}
    groups: Iterable[tuple[Any, pd.DataFrame]] = rules.acceptance.groupby(["draws", "depth", "solver"])
    for (draws, depth, solver), part in groups:
        for name, found in means.items():
            made = rate(part["document"], part[name] * part["paths"], part["paths"])
            found.setdefault(draws, {}).setdefault(depth, {"depth of the node": depth})[solver] = made
    tables = [
        Table([*rows.values()], "as drafted" if draws == AS_DRAFTED else f"{draws} draws at every node", unit=NUMBER)
        for draws, rows in sorted(means["rate"].items(), reverse=True)
    ]
    apart = [
        {"depth of the node": depth, "‖p − q‖₁": row["nss"]} for depth, row in means["distance"][AS_DRAFTED].items()
    ]
    return [*tables, Table(apart, "Distance of the distributions", unit=NUMBER)]


def _leads(first: First, unit: str) -> str:
    return f"{first.name} leads with {shown(first.value, unit)}, tied with {len(first.tied) or 'none'}"


def _shapes(rules: Rules, family: str) -> str:
    """The most efficient at every setting, then the fastest, each once."""
    both = [made.measured for made in (rules.exact, rules.timed)]
    chosen = [measured.choices(setting)[family] for measured in both for setting in measured.settings]
    return ", ".join(dict.fromkeys(arm.partition(" ")[0] for arm in chosen))


def read_rules(folder: Path, measured: Measured) -> Rules | None:
    """What ``folder`` says of one device, with the decodes ``measured`` there; ``None`` where there is no finished comparison.

    Raises
    ------
    ValueError
        If none of its shapes and rules was timed.
    """
    if not (folder / PROVENANCE).is_file():
        return None
    roots, record = pd.read_parquet(folder / ROOTS), read_json(folder / CHOICES)
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
        pd.read_parquet(folder / ACCEPTANCE),
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
