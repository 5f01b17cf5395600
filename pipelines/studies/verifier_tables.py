"""The study's tables: those of papers 004 and 001 for one pair.

by slice      004, Tables 2 and 3: rule by slice, settings pooled
by setting    004, appendix F: rule by sampling setting, with and without delayed expansion
chains        001, Table 1 and the ablations: tokenwise against block (= HSD) by γ and by temperature
eleven        001, Table 2: eleven drafts
phases        001, Table A.4: where a token's time goes
depth         004, Figure 1: acceptance by depth and the distance of the distributions
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from pipelines.measuring.names import PLAIN, chain_gamma
from pipelines.measuring.verifiers.names import AS_DRAFTED
from pipelines.reporting.comparison import ALL, RATES, By, at
from pipelines.reporting.section import EFFICIENCY, SPEEDUP, Cell, Row, Table
from pipelines.reporting.text import NUMBER, TIMES, WHOLE, Interval, listed
from pipelines.reporting.verifier_rules import Rules, acceptance_by_depth, ruled
from predictors.rounds import PHASES

Value = Callable[[str, By], Interval]


def tables(rules: Rules) -> Iterator[Table]:
    """All of them, in the order in which they are read."""
    exact, timed, roots = rules.exact.measured, rules.timed.measured, rules.exact.measured.test
    reference = "T=1" if "T=1" in timed.settings else timed.settings[0]
    shapes = {family: list(dict.fromkeys(part["drafter"])) for family, part in roots.groupby("family")}
    chains = sorted(shapes.get("chain", ()), key=lambda name: chain_gamma(name) or 0)
    scopes = {name: at(slice_=name) for name in exact.slices} | {"all": ALL}
    yield _leaders(rules, scopes)
    for name, unit, settings, value in (
        ("exact block efficiency", NUMBER, exact.settings, rules.expected),
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
    whole = "Every shape with every rule, exact block efficiency, all settings"
    yield _cross(whole, rules, every, rules.expected, NUMBER)
    same = "Every rule against traversal (on chains: block) on the same trees, paired"
    yield _cross(f"{same}, all settings", rules, every, _against(rules), TIMES)
    wide = str(roots[roots["family"] == "iid"].groupby("drafter")["nodes"].mean().idxmax())
    widest = {name: (wide, at(name)) for name in exact.settings}
    yield _cross(f"{same}, on {wide}", rules, widest, _against(rules), TIMES)
    yield _eleven(rules, timed.settings)
    yield _phases(rules, [*chains, *shapes.get("eleven", ())], reference)
    yield _depths(rules)


def _leaders(rules: Rules, scopes: Mapping[str, By]) -> Table:
    """The best rule by setting and by slice, and which others the data do not tell apart from it."""
    rows: list[Row] = []
    for label, measured, leader in (
        ("exact block efficiency", rules.exact.measured, rules.most_efficient),
        (SPEEDUP, rules.timed.measured, rules.fastest),
    ):
        for name, by in ({setting: at(setting) for setting in measured.settings} | dict(scopes)).items():
            first = leader(by)
            row: dict[str, Cell] = {"measure": label, "where": name, "first": first.name, "value": first.value}
            rows.append({**row, "not told apart from it": listed(first.tied)})
    return Table(rows, "Who leads where")


def _grid(caption: str, rules: Rules, columns: Mapping[str, By], value: Value, unit: str) -> Table:
    cells = {family: {name: value(family, by) for name, by in columns.items()} for family in rules.names}
    return Table([{"rule": name, **cells[family]} for family, name in rules.names.items()], caption, unit=unit)


def _chosen(rules: Rules) -> Table:
    """For block efficiency, and after a slash for speed."""
    both, rows = (rules.exact.measured, rules.timed.measured), []
    for family, name in rules.names.items():
        row = {"rule": name}
        for setting in rules.exact.measured.settings:
            arms = (made.choices(setting)[family] for made in both if setting in made.settings)
            row[setting] = " / ".join(arm.partition(" ")[0] for arm in arms)
        rows.append(row)
    return Table(rows, "Shapes chosen on validation prompts: for block efficiency / for speed")


def _chains(caption: str, rules: Rules, places: Iterable[tuple[str, str]]) -> Table:
    rows: list[Row] = []
    for chain, setting in places:
        by, tokenwise = at(setting), ruled(chain, "tokenwise")
        rows.append(
            {
                "chain": chain,
                "setting": setting,
                "tokenwise, exact": rules.expected(tokenwise, by),
                "block = HSD, exact": rules.expected(chain, by),
                "gain, exact": rules.exact.gain(chain, tokenwise, by),
                "tokenwise, tokens/s": rules.timed.pace(tokenwise, by),
                "block, tokens/s": rules.timed.pace(chain, by),
                "gain on the clock": rules.timed.gain(chain, tokenwise, by),
            }
        )
    return Table(rows, caption)


def _cross(caption: str, rules: Rules, places: Mapping[str, tuple[str, By]], value: Value, unit: str) -> Table:
    """Rows are shapes at settings, columns rules."""
    names = list(dict.fromkeys(rules.exact.measured.test["verifier"]))
    rows: list[Row] = [
        {"": label} | {name: value(ruled(shape, name), by) for name in names} for label, (shape, by) in places.items()
    ]
    return Table(rows, caption, unit=unit)


def _against(rules: Rules) -> Value:
    """An arm over the best rule that reads the same tree: no chance of verification in it, and what trees differ in cancels."""
    known = set(rules.exact.measured.families)

    def ratio(arm: str, by: By) -> Interval:
        shape = arm.partition(" ")[0]
        return rules.exact.speedup(arm, shape if shape in known else ruled(shape, "traversal"), by)

    return ratio


def _eleven(rules: Rules, settings: Iterable[str]) -> Table:
    arms = [arm for arm, family in rules.exact.measured.families.items() if family.startswith("eleven")]
    rows: list[Row] = [
        {
            "arm": arm,
            "setting": setting,
            f"{EFFICIENCY}, exact": rules.expected(arm, at(setting)),
            "decoded": rules.kept(arm, at(setting)),
            "tokens/s": rules.timed.pace(arm, at(setting)),
            SPEEDUP: rules.timed.speedup(arm, PLAIN, at(setting)),
            "time verifying": rules.timed.rate(arm, *RATES["time verifying"], at(setting)),
        }
        for arm in arms
        for setting in settings
    ]
    return Table(rows, "Eleven drafts of eight tokens (paper 001, Table 2)")


def _phases(rules: Rules, shapes: list[str], setting: str) -> Table:
    """Verifying includes turning logits into distributions and committing the accepted path to the caches."""
    by, rate = at(setting), rules.timed.rate
    arms = [arm for shape in shapes for arm in rules.timed.measured.families if arm.partition(" ")[0] == shape]
    rows: list[Row] = [
        {"arm": arm, "ms/token": rate(arm, "seconds", "tokens", by)["value"]}
        | {one: rate(arm, f"seconds_{one}", "seconds", by) for one in (*PHASES, "rest")}
        for arm in arms
    ]
    return Table(rows, f"Where a token's time goes, {setting} (paper 001, Table A.4)")


def _depths(rules: Rules) -> Table:
    """Acceptance rates of the per-node solvers, and the distance of the distributions."""
    found = acceptance_by_depth(rules)
    rows: list[Row] = [
        {"depth": f"{solver}, {'as drafted' if draws == AS_DRAFTED else f'{draws} draws'}"}
        | {str(depth): means["rate"] for depth, means in sorted(made.items())}
        for (solver, draws), made in found.items()
    ]
    apart: dict[str, Cell] = {
        str(depth): means["distance"] for depth, means in sorted(found["nss", AS_DRAFTED].items())
    }
    return Table([*rows, {"depth": "‖p − q‖₁", **apart}], "Acceptance by depth (paper 004, Figure 1)", unit=NUMBER)
