"""Section ``verifiers``: how many drafted tokens every verification rule keeps, and how fast it decodes.

Block efficiency is exact, the mean of 1 + E[tau | tree] over matched roots, or decoded, emitted / target passes of real decodes.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.measuring.names import PLAIN
from pipelines.measuring.verifiers.names import AS_DRAFTED
from pipelines.reporting.comparison import at
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.measured_folder import KEY
from pipelines.reporting.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, Look, band, draw, styles, whiskers
from pipelines.reporting.section import EFFICIENCY, SPEEDUP, Picture, Row, Section, Table
from pipelines.reporting.text import NUMBER, TIMES, Interval, shown
from pipelines.reporting.verifier_rules import First, Rules, acceptance_by_depth, read_rules

SOLVERS = {
    "nss": (GREY, "v"),
    "naive_tree": (ORANGE, "o"),
    "specinfer": (BLUE, "s"),
    "spectr": (GREEN, "^"),
    "khisti": (PURPLE, "D"),
}


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
    return Section(
        "verifiers",
        "Which verification rule",
        f"By exact block efficiency {_leads(efficient, NUMBER)}; by speed {_leads(fast, TIMES)}.",
        [rule_table(rules, efficient, fast)],
        [
            Picture("verifiers", draw(_by_rule, rules), "Every rule at its best shape, by sampling setting."),
            Picture("acceptance", draw(_by_depth, rules), "How often rules stay on the tree, by depth."),
        ],
        (*notes, *(["The time cap ended this comparison early."] if rules.capped else [])),
    )


def rule_table(rules: Rules, efficient: First, fast: First) -> Table:
    """Every rule over all settings; those that lead are marked."""
    rows: list[Row] = []
    for family, name in rules.names.items():
        worse = [by for by, first in (("efficiency", efficient), ("speed", fast)) if name in first.worse]
        rows.append(
            {
                "rule": name,
                "shapes": ", ".join(_shapes(rules, family)),
                f"{EFFICIENCY}, exact": rules.expected(family),
                "decoded": rules.kept(family),
                SPEEDUP: rules.timed.speedup(family, PLAIN),
                **rules.timed.counts(family, ["time verifying"]),
                "surely below the leader in": ", ".join(worse) or None,
            }
        )
    return Table(rows, "All sampling settings", frozenset({efficient.name, fast.name}))


def _leads(first: First, unit: str) -> str:
    return f"{first.name} leads with {shown(first.value, unit)}, tied with {len(first.tied) or 'none'}"


def _shapes(rules: Rules, family: str) -> list[str]:
    """The most efficient at every setting, then the fastest, each once."""
    both = [made.measured for made in (rules.exact, rules.timed)]
    chosen = [measured.choices(setting)[family] for measured in both for setting in measured.settings]
    return list(dict.fromkeys(arm.partition(" ")[0] for arm in chosen))


def _by_rule(rules: Rules) -> Figure:
    looks, names = styles(rules.exact.measured.settings), rules.names.items()
    speedup = rules.timed.speedup
    panels = {
        "Block efficiency, exact": {name: [rules.expected(one, at(by)) for by in looks] for one, name in names},
        "Speed-up over plain decoding": {name: [speedup(one, PLAIN, at(by)) for by in looks] for one, name in names},
    }
    return whiskers(panels, "of plain decoding's one token a pass, and of its speed", line=1.0, looks=looks)


def _by_depth(rules: Rules) -> Figure:
    found = acceptance_by_depth(rules)
    fixed = max(draws for _, draws in found)
    figure = Figure(figsize=(11.5, 3.6), layout="constrained")
    *panels, apart = figure.subplots(1, 3)
    titles = (fixed, f"{fixed} draws at every node"), (AS_DRAFTED, "As drafted")
    for axes, (draws, title) in zip(panels, titles, strict=True):
        for solver in (solver for solver in SOLVERS if (solver, draws) in found):
            _line(axes, found[solver, draws], "rate", SOLVERS[solver], solver)
        axes.set(xlabel="depth of the node", ylabel="acceptance rate", title=title, ylim=(0, 1))
    _line(apart, found["nss", AS_DRAFTED], "distance", ("#333333", "o"), "L1 distance")
    apart.set(xlabel="depth of the node", ylabel="‖p − q‖₁", title="Distance of the distributions", ylim=(0, None))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SOLVERS))
    return figure


def _line(axes: Axes, by_depth: dict[int, dict[str, Interval]], name: str, look: Look, label: str) -> None:
    band(axes, list(by_depth), [means[name] for means in by_depth.values()], look, label)
    axes.set_xticks(list(by_depth))
