"""Section ``verifiers``: how many drafted tokens every verification rule keeps, and how fast it decodes.

Block efficiency is exact, the mean of 1 + E[tau | tree] over matched roots, or decoded, emitted / target passes of real decodes.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pandas as pd

from pipelines.measuring.verifiers.table import AS_DRAFTED
from pipelines.reporting.comparison import By, across, rate
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.measured_folder import KEY
from pipelines.reporting.plots import curves, picture, whiskers
from pipelines.reporting.section import EFFICIENCY, SPEEDUP, Cell, Metric, Section, Table, grid
from pipelines.reporting.text import NUMBER, TIMES, shown
from pipelines.reporting.verifier_rules import First, Rules, read_rules

EXACT = f"{EFFICIENCY}, exact"


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
