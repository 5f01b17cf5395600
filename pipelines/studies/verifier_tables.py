"""The study's tables: those of papers 004 and 001 for one pair.

by slice      004, Tables 2 and 3: rule by slice, settings pooled
by setting    004, appendix F: rule by sampling setting, with and without delayed expansion
chains        001, Table 1 and the ablations: tokenwise against block (= HSD) by γ and by temperature
eleven        001, Table 2: eleven drafts
phases        001, Table A.4: where a token's time goes
depth         004, Figure 1: acceptance by depth and the distance of the distributions
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from pipelines.measuring.names import chain_gamma
from pipelines.measuring.verifiers.names import AS_DRAFTED
from pipelines.reporting.comparison import ALL, By, at
from pipelines.reporting.section import Column, Row, Table
from pipelines.reporting.text import GAIN, MS, NUMBER, SHARE, TEXT, TIMES, WHOLE, Interval, listed
from pipelines.reporting.verifier_rules import Rules, acceptance_by_depth, ruled
from predictors.rounds import PHASES

EFFICIENCY, SPEED = "exact block efficiency", "speed-up over plain"
Value = Callable[[str, By], Interval]
Rows = Iterable[Row]


def tables(rules: Rules) -> Iterator[Table]:
    """All of them, in the order in which they are read."""
    exact, timed, roots = rules.exact.measured, rules.timed.measured, rules.exact.measured.test
    reference = "T=1" if "T=1" in timed.settings else timed.settings[0]
    shapes = {family: list(dict.fromkeys(part["drafter"])) for family, part in roots.groupby("family")}
    chains = sorted(shapes.get("chain", ()), key=lambda name: chain_gamma(name) or 0)
    scopes = {name: at(slice_=name) for name in sorted(roots["slice"].unique())} | {"all": ALL}
    yield _leaders(rules, scopes)
    for name, unit, settings, value in (
        (EFFICIENCY, NUMBER, exact.settings, rules.expected),
        ("block efficiency of the same shapes, decoded", NUMBER, timed.settings, rules.kept),
        ("tokens per second", WHOLE, timed.settings, rules.timed.pace),
    ):
        yield _grid(f"Best {name} by slice (paper 004, Tables 2 and 3)", rules, scopes, value, unit)
        by_setting = {setting: at(setting) for setting in settings}
        yield _grid(f"Best {name} by setting (paper 004, appendix F)", rules, by_setting, value, unit)
    yield _chosen(rules)
    yield _chains(f"Chains by draft length, {reference} (paper 001)", rules, [(name, reference) for name in chains])
    middle = [(chains[len(chains) // 2], setting) for setting in exact.settings]
    yield _chains("Chains by sampling setting (paper 001)", rules, middle)
    every = {shape: (shape, ALL) for shape in dict.fromkeys(roots["drafter"])}
    yield _cross(
        "Every shape with every rule, exact block efficiency, all settings", rules, every, rules.expected, NUMBER
    )
    same = "Every rule against traversal (on chains: block) on the same trees, paired"
    yield _cross(f"{same}, all settings", rules, every, _against(rules), TIMES)
    wide = str(roots[roots["family"] == "iid"].groupby("drafter")["nodes"].mean().idxmax())
    yield _cross(
        f"{same}, on {wide}", rules, {name: (wide, at(name)) for name in exact.settings}, _against(rules), TIMES
    )
    yield _eleven(rules, timed.settings)
    yield _phases(rules, [*chains, *shapes.get("eleven", ())], reference)
    yield _depths(rules)


def _table(caption: str, names: Mapping[str, str], rows: Rows) -> Table:
    """``names`` of columns with their units."""
    return Table(tuple(Column(name, unit) for name, unit in names.items()), tuple(rows), caption)


def _leaders(rules: Rules, scopes: Mapping[str, By]) -> Table:
    """The best rule by setting and by slice, and which others the data do not tell apart from it."""
    rows: list[Row] = []
    for label, measured, leader in (
        (EFFICIENCY, rules.exact.measured, rules.most_efficient),
        (SPEED, rules.timed.measured, rules.fastest),
    ):
        for name, by in ({setting: at(setting) for setting in measured.settings} | dict(scopes)).items():
            first = leader(by)
            rows.append((label, name, first.name, first.value, listed(first.tied)))
    columns = {"measure": TEXT, "where": TEXT, "first": TEXT, "value": NUMBER, "not told apart from it": TEXT}
    return _table("Who leads where", columns, rows)


def _grid(caption: str, rules: Rules, columns: Mapping[str, By], value: Value, unit: str) -> Table:
    rows: list[Row] = [(name, *(value(family, by) for by in columns.values())) for family, name in rules.names.items()]
    return _table(caption, {"rule": TEXT} | dict.fromkeys(columns, unit), rows)


def _chosen(rules: Rules) -> Table:
    """For block efficiency, and after a slash for speed."""
    both, settings = (rules.exact.measured, rules.timed.measured), rules.exact.measured.settings
    rows = []
    for family, name in rules.names.items():
        arms = ([made.choices(one)[family] for made in both if one in made.settings] for one in settings)
        rows.append((name, *(" / ".join(arm.partition(" ")[0] for arm in some) for some in arms)))
    return _table(
        "Shapes chosen on validation prompts: for block efficiency / for speed",
        dict.fromkeys(["rule", *settings], TEXT),
        rows,
    )


def _chains(caption: str, rules: Rules, places: Iterable[tuple[str, str]]) -> Table:
    rows: list[Row] = []
    for chain, setting in places:
        by, arms = at(setting), (ruled(chain, "tokenwise"), chain)
        exact = *(rules.expected(arm, by) for arm in arms), rules.exact.gain(chain, arms[0], by)
        clock = *(rules.timed.pace(arm, by) for arm in arms), rules.timed.gain(chain, arms[0], by)
        rows.append((chain, setting, *exact, *clock))
    columns = {"tokenwise, exact": NUMBER, "block = HSD, exact": NUMBER, "gain, exact": GAIN}
    columns |= {"tokenwise, tokens/s": WHOLE, "block, tokens/s": WHOLE, "gain on the clock": GAIN}
    return _table(caption, {"chain": TEXT, "setting": TEXT} | columns, rows)


def _cross(caption: str, rules: Rules, places: Mapping[str, tuple[str, By]], value: Value, unit: str) -> Table:
    """Rows are shapes at settings, columns rules."""
    names = list(dict.fromkeys(rules.exact.measured.test["verifier"]))
    rows: list[Row] = [
        (label, *(value(ruled(shape, name), by) for name in names)) for label, (shape, by) in places.items()
    ]
    return _table(caption, {"": TEXT} | dict.fromkeys(names, unit), rows)


def _against(rules: Rules) -> Value:
    """An arm over the best rule that reads the same tree: no chance of verification in it, and what trees differ in cancels."""
    known = set(rules.exact.measured.families)

    def ratio(arm: str, by: By) -> Interval:
        shape = arm.partition(" ")[0]
        return rules.exact.speedup(arm, shape if shape in known else ruled(shape, "traversal"), by)

    return ratio


def _eleven(rules: Rules, settings: Iterable[str]) -> Table:
    rows = []
    for arm in (arm for arm, family in rules.exact.measured.families.items() if family.startswith("eleven")):
        for setting in settings:
            by = at(setting)
            speeds = rules.timed.pace(arm, by), rules.timed.speedup(arm, by=by)
            verifying = rules.timed.rate(arm, "seconds_verify", "seconds", by)
            rows.append((arm, setting, rules.expected(arm, by), rules.kept(arm, by), *speeds, verifying))
    columns = {
        "block efficiency, exact": NUMBER,
        "decoded": NUMBER,
        "tokens/s": WHOLE,
        SPEED: TIMES,
        "verifying": SHARE,
    }
    return _table("Eleven drafts of eight tokens (paper 001, Table 2)", {"arm": TEXT, "setting": TEXT} | columns, rows)


def _phases(rules: Rules, shapes: list[str], setting: str) -> Table:
    """Verifying includes turning logits into distributions and committing the accepted path to the caches."""
    phases, by, rate = (*PHASES, "rest"), at(setting), rules.timed.rate
    arms = [arm for shape in shapes for arm in rules.timed.measured.families if arm.partition(" ")[0] == shape]
    rows = (
        (
            arm,
            rate(arm, "seconds", "tokens", by)["value"],
            *(rate(arm, f"seconds_{one}", "seconds", by) for one in phases),
        )
        for arm in arms
    )
    columns = {"arm": TEXT, "ms/token": MS} | dict.fromkeys(phases, SHARE)
    return _table(f"Where a token's time goes, {setting} (paper 001, Table A.4)", columns, rows)


def _depths(rules: Rules) -> Table:
    """Acceptance rates of the per-node solvers, and the distance of the distributions."""
    found = acceptance_by_depth(rules)
    depths = sorted({depth for made in found.values() for depth in made})
    rows = [
        (
            f"{solver}, {draws} draws" if draws != AS_DRAFTED else f"{solver}, as drafted",
            *(made.get(depth, {}).get("rate") for depth in depths),
        )
        for (solver, draws), made in found.items()
    ]
    apart = found["nss", AS_DRAFTED]
    rows.append(("‖p − q‖₁", *(apart.get(depth, {}).get("distance") for depth in depths)))
    return _table(
        "Acceptance by depth (paper 004, Figure 1)", {"depth": TEXT} | dict.fromkeys(map(str, depths), NUMBER), rows
    )
