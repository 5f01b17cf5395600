"""The study's tables: those of papers 004 and 001 for one pair, each with the paper's own in its caption.

Verifying includes turning logits into distributions and committing the accepted path to the caches.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from pipelines.measuring.names import chain_gamma
from pipelines.reporting.comparison import ALL, PARTS, By, Comparison, across
from pipelines.reporting.section import SPEEDUP, Cell, Metric, Row, Table, grid
from pipelines.reporting.text import NUMBER, TIMES, WHOLE, Interval, listed
from pipelines.reporting.verifiers import EXACT, First, Rules, acceptance, ruled

Place = tuple[str, By]  # a shape, on some decodes


def tables(rules: Rules) -> Iterator[Table]:
    """All of them, in the order in which they are read."""
    exact, timed = rules.exact.measured, rules.timed.measured
    scopes = {name: By(slice=name) for name in exact.slices} | {"all": ALL}
    settings, clocked = ({one: By(one) for one in measured.settings} for measured in (exact, timed))
    yield _leaders("exact block efficiency", rules.most_efficient, settings | scopes)
    yield _leaders(SPEEDUP, rules.fastest, clocked | scopes)
    for name, unit, parts, value in (
        ("exact block efficiency", NUMBER, settings, rules.expected),
        ("block efficiency of the same shapes, decoded", NUMBER, clocked, rules.kept),
        ("tokens per second", WHOLE, clocked, rules.timed.pace),
    ):
        by_slice = f"Best {name} by slice (paper 004, Tables 2 and 3)"
        yield grid("rule", rules.places, across(value, scopes), by_slice, unit=unit)
        by_setting = f"Best {name} by setting (paper 004, appendix F)"
        yield grid("rule", rules.places, across(value, parts), by_setting, unit=unit)
    chosen = {setting: partial(_shapes, (rules.exact, rules.timed), setting) for setting in settings}
    caption = "Shapes chosen on validation prompts: for block efficiency / for speed"
    yield grid("rule", rules.places, chosen, caption)
    yield from _of_shapes(rules, settings)


def _of_shapes(rules: Rules, settings: Mapping[str, By]) -> Iterator[Table]:
    """Of shapes with rules: chains, all of them, eleven drafts, times and depths."""
    roots, timed = rules.exact.measured.test, rules.timed.measured
    reference = "T=1" if "T=1" in timed.settings else timed.settings[0]
    shapes = {family: list(dict.fromkeys(part["drafter"])) for family, part in roots.groupby("family")}
    chains = sorted(shapes.get("chain", ()), key=lambda name: chain_gamma(name) or 0)
    lengths, middle = {name: (name, By(reference)) for name in chains}, chains[len(chains) // 2]
    yield grid("chain", lengths, _against_tokenwise(rules), f"Chains by draft length, {reference} (paper 001)")
    by_setting = {name: (middle, by) for name, by in settings.items()}
    yield grid("setting", by_setting, _against_tokenwise(rules), f"{middle} by sampling setting (paper 001)")
    every: dict[str, Place] = {shape: (shape, ALL) for shape in dict.fromkeys(roots["drafter"])}
    whole = "Every shape with every rule, exact block efficiency, all settings"
    yield grid("shape", every, _by_rule(rules, rules.expected), whole, unit=NUMBER)
    same, against = "Every rule against traversal (on chains: block) on the same trees, paired", partial(_paired, rules)
    yield grid("shape", every, _by_rule(rules, against), f"{same}, all settings", unit=TIMES)
    wide = str(roots[roots["family"] == "iid"].groupby("drafter")["nodes"].mean().idxmax())
    widest = {name: (wide, by) for name, by in settings.items()}
    yield grid("setting", widest, _by_rule(rules, against), f"{same}, on {wide}", unit=TIMES)
    arms = [arm for arm, family in rules.exact.measured.families.items() if family.startswith("eleven")]
    eleven = {f"{arm}, {setting}": (arm, By(setting)) for arm in arms for setting in timed.settings}
    columns: dict[str, Metric] = {EXACT: rules.expected, "decoded": rules.kept, "tokens/s": rules.timed.pace}
    columns |= rules.timed.metrics(SPEEDUP, "time verifying")
    yield grid("arm", eleven, columns, "Eleven drafts of eight tokens (paper 001, Table 2)")
    drawn = (*chains, *shapes.get("eleven", ()))
    own = {arm: (arm, By(reference)) for shape in drawn for arm in timed.families if arm.partition(" ")[0] == shape}
    phases = rules.timed.metrics("ms/token", *PARTS)
    yield grid("arm", own, phases, f"Where a token's time goes, {reference} (paper 001, Table A.4)")
    for made in acceptance(rules):
        yield replace(made, caption=f"Acceptance by depth, {made.caption} (paper 004, Figure 1)")


def _leaders(measure: str, leader: Callable[[By], First], places: Mapping[str, By]) -> Table:
    """The best rule by setting and by slice, and which others the data do not tell apart from it."""
    firsts = {name: leader(by) for name, by in places.items()}
    rows: list[Row] = [
        {"where": name, "first": first.name, "value": first.value, "not told apart from it": listed(first.tied)}
        for name, first in firsts.items()
    ]
    return Table(rows, f"Who leads where, by {measure}")


def _shapes(both: tuple[Comparison, Comparison], setting: str, family: str) -> str:
    """For block efficiency, and after a slash for speed."""
    measured = [made.measured for made in both if setting in made.measured.settings]
    return " / ".join(one.choices(setting)[family].partition(" ")[0] for one in measured)


def _against_tokenwise(rules: Rules) -> dict[str, Metric]:
    """Of a chain: both rules, and what one gains over the other."""

    def tokenwise(value: Metric) -> Metric:
        return lambda chain, by: value(ruled(chain, "tokenwise"), by)

    def gained(compared: Comparison) -> Metric:
        return lambda chain, by: compared.gain(chain, ruled(chain, "tokenwise"), by)

    return {
        "tokenwise, exact": tokenwise(rules.expected),
        "block = HSD, exact": rules.expected,
        "gain, exact": gained(rules.exact),
        "tokenwise, tokens/s": tokenwise(rules.timed.pace),
        "block, tokens/s": rules.timed.pace,
        "gain on the clock": gained(rules.timed),
    }


def _by_rule(rules: Rules, value: Metric) -> dict[str, Metric]:
    """A column for every rule: a value of its arm."""

    def of_rule(rule: str, shape: str, by: By) -> Cell:
        return value(ruled(shape, rule), by)

    return {name: partial(of_rule, name) for name in dict.fromkeys(rules.exact.measured.test["verifier"])}


def _paired(rules: Rules, arm: str, by: By) -> Interval:
    """An arm over the best rule that reads the same tree: no chance of verification in it, and what trees differ in cancels."""
    shape = arm.partition(" ")[0]
    return rules.exact.speedup(arm, shape if shape in rules.exact.measured.families else ruled(shape, "traversal"), by)
