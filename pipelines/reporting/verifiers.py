"""Section ``verifiers``: how many drafted tokens every verification rule keeps, and how fast it decodes.

Block efficiency is exact, the mean of 1 + E[tau | tree] over matched roots, or decoded, emitted / target passes of real decodes.

An arm is a shape and a rule; the family ``iid traversal`` is a rule on one kind of shapes, and ``chain`` is block verification.
Of a tree at a root, one target pass emits 1 + E[tau | tree] tokens. So a root is a decode of one pass that took one second, and
the same `Comparison` pairs rules by root there and by block on the clock.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.evidence.timed_blocks import setting_of
from pipelines.measuring.names import CHOICES, PLAIN, PROVENANCE
from pipelines.measuring.tables import ACCEPTANCE, AS_DRAFTED, FAMILIES, ROOTS
from pipelines.outputs import read_json
from pipelines.reporting.comparison import ALL, KEY, By, Comparison, across, rate, with_settings
from pipelines.reporting.inputs import Inputs, Measured
from pipelines.reporting.plots import curves, picture, whiskers
from pipelines.reporting.section import EFFICIENCY, SPEEDUP, Metric, Section, Table, grid
from pipelines.reporting.text import NUMBER, TIMES, UNDEFINED, UNKNOWN, Interval, shown, surely_above

BLOCK = "block"
EXACT = f"{EFFICIENCY}, exact"
SHOWN_FAMILIES = {"delayed": " (delayed)", "distinct": " (distinct)"}
DEPTH = "depth of the node"
NOTES = (
    "Exact block efficiency comes from the same trees for every rule, at {roots} roots of {documents} documents. "
    "Decoded counts real rounds, the last of which the budget cuts short. Shapes were chosen on validation prompts.",
    "Every rule is lossless. Chains have one path; iid-3x4 has 3 paths of 4 tokens; delayed-3.1.3 parts "
    "after one token; distinct shapes draw without replacement. hsd is block, and match is nss, under another name.",
)


@dataclass(frozen=True)
class First:
    """The best rule by point estimate, its ``value``, and the others: surely ``worse``, or ``tied`` with it."""

    name: str
    value: Interval
    worse: list[str]
    tied: list[str]

    def leads(self, unit: str) -> str:
        return f"{self.name} leads with {shown(self.value, unit)}, tied with {len(self.tied) or 'none'}"


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
        estimates = {family: value["value"] for family, value in values.items() if value["value"] is not None}
        if not estimates:
            return First(UNKNOWN, dict(UNDEFINED), [], [])
        best = max(estimates, key=estimates.__getitem__)
        over = {self.names[one]: compared.speedup(best, one, by) for one in estimates if one != best}
        apart = {name: surely_above(ratio, 1) for name, ratio in over.items() if ratio["value"] is not None}
        worse, tied = ([name for name, surely in apart.items() if surely == kind] for kind in (True, False))
        return First(self.names[best], values[best], worse, tied)


def section(inputs: Inputs) -> Section | None:
    """``None`` where rules were not compared."""
    rules = read_rules(inputs.of("verifiers"), inputs.measured)
    return None if rules is None else of_rules(rules)


def of_rules(rules: Rules) -> Section:
    """What a comparison says: every rule over all settings, of which those that lead are marked, and by setting."""
    roots, efficient, fast = rules.exact.test, rules.most_efficient(), rules.fastest()
    worse = {"efficiency": efficient.worse, "speed": fast.worse}
    both = [made.choices(setting) for made in (rules.exact, rules.timed) for setting in made.settings]

    def shapes(family: str) -> str:
        """The most efficient at every setting, then the fastest, each once."""
        return ", ".join(dict.fromkeys(chosen[family].partition(" ")[0] for chosen in both))

    def below(family: str) -> str | None:
        return ", ".join(by for by, rows in worse.items() if rules.names[family] in rows) or None

    columns: dict[str, Metric] = {
        "shapes": shapes,
        EXACT: rules.expected,
        "decoded": rules.kept,
        **rules.timed.metrics(SPEEDUP, "time verifying"),
        "surely below the leader in": below,
    }
    table = grid("rule", rules.places, columns, "All sampling settings", marked={efficient.name, fast.name})
    settings = {setting: By(setting) for setting in rules.exact.settings}
    panels = [
        grid("rule", rules.places, across(rules.expected, settings), "Block efficiency, exact"),
        grid("rule", rules.places, across(rules.timed.speedup, settings), "Speed-up over plain decoding"),
    ]
    label = "times plain decoding"
    pictures = [
        picture("verifiers", "Every rule at its best shape.", whiskers, panels, [*settings], label, 1.0),
        picture("acceptance", "How often rules stay on the tree, by depth.", curves, acceptance(rules)),
    ]
    count = {"roots": len(roots[KEY].drop_duplicates()), "documents": roots["document"].nunique()}
    notes = [note.format(**count) for note in NOTES]
    notes += ["The time cap ended this comparison early."] if rules.capped else []
    finding = f"By exact block efficiency {efficient.leads(NUMBER)}; by speed {fast.leads(TIMES)}."
    return Section("verifiers", "Which verification rule", finding, [table], pictures, notes)


def acceptance(rules: Rules) -> list[Table]:
    """By depth of a node: how often the per-node solvers stay on the tree, by number of draws, and the distance ‖p − q‖₁."""
    everywhere = rules.acceptance

    def mean(part: pd.DataFrame, amount: str) -> Interval:
        return rate(part["document"], part[amount] * part["paths"], part["paths"])

    rows: list[dict[str, Any]]
    tables = []
    for draws in sorted(everywhere["draws"].unique(), reverse=True):
        rows = [
            {DEPTH: depth, **{str(solver): mean(own, "rate") for solver, own in part.groupby("solver")}}
            for depth, part in everywhere[everywhere["draws"] == draws].groupby("depth")
        ]
        title = "as drafted" if draws == AS_DRAFTED else f"{draws} draws at every node"
        tables.append(Table(rows, title, unit=NUMBER))
    apart = everywhere[(everywhere["draws"] == AS_DRAFTED) & (everywhere["solver"] == "nss")]
    rows = [{DEPTH: depth, "‖p − q‖₁": mean(own, "distance")} for depth, own in apart.groupby("depth")]
    return [*tables, Table(rows, "Distance of the distributions", unit=NUMBER)]


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
    arms = [ruled(shape, rule) for shape, rule in zip(roots["drafter"], roots["verifier"], strict=True)]
    known = set(arms)
    roots = roots.assign(arm=arms, repeat=roots["root"], tokens=roots["expected"], seconds=1.0)
    rows = with_settings(measured.decodes)
    rows = rows[rows["setting"].isin(roots["setting"].unique())]
    own = rows[
        rows["arm"].isin(known)
    ]  # of the roots' shapes, rules and settings, then plain decoding's of their blocks
    timed = pd.concat([own, rows[(rows["arm"] == PLAIN) & rows["block"].isin(own["block"])]])
    fastest = []  # on validation prompts, of the shapes that are compared
    for choice in measured.findings["choices"]:
        speeds = {arm: speed for arm, speed in choice["tokens_per_second"].items() if arm in known}
        if speeds:
            arm = max(speeds, key=speeds.__getitem__)
            fastest.append({"setting": setting_of(choice), "family": choice["family"], "arm": arm})
    rules = Rules(
        Comparison(roots, {"choices": best}),
        Comparison(timed, {"choices": best}),
        Comparison(timed, {"choices": [*best, *fastest]}),
        {ruled(family, rule): f"{rule}{SHOWN_FAMILIES.get(family, '')}" for family, rule in competing},
        pd.read_parquet(folder / ACCEPTANCE),
        record["capped"] or measured.findings["capped"],
    )
    if rules.timed.test.empty:
        raise ValueError(
            f"no arm of {folder} was timed: give section measure an arm SHAPE RULE for each of its shapes."
        )
    return rules


def ruled(name: str, rule: str) -> str:
    """The arm of a shape, or the family of a kind of shapes, with its rule."""
    return name if rule == BLOCK else f"{name} {rule}"
