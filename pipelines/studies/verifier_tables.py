"""The study's tables: those of papers 004 and 001 for one pair, each with the paper's own in its caption.

Verifying includes turning logits into distributions and committing the accepted path to the caches.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from pipelines.measuring.names import chain_gamma
from pipelines.reporting.comparison import ALL, PARTS, By, across
from pipelines.reporting.section import SPEEDUP, Cell, Metric, Table, grid
from pipelines.reporting.text import NUMBER, TIMES, WHOLE, Interval, listed
from pipelines.reporting.verifiers import EXACT, First, Rules, acceptance, ruled


def tables(rules: Rules) -> Iterator[Table]:
    """All of them, in the order in which they are read."""
    exact, timed = rules.exact, rules.timed
    scopes = {name: By(slice=name) for name in exact.slices} | {"all": ALL}
    settings, clocked = ({one: By(one) for one in made.settings} for made in (exact, timed))
    yield _leaders("exact block efficiency", rules.most_efficient, settings | scopes)
    yield _leaders(SPEEDUP, rules.fastest, clocked | scopes)
    for name, unit, parts, value in (
        ("exact block efficiency", NUMBER, settings, rules.expected),
        ("block efficiency of the same shapes, decoded", NUMBER, clocked, rules.kept),
        ("tokens per second", WHOLE, clocked, timed.pace),
    ):
        by_slice = f"Best {name} by slice (paper 004, Tables 2 and 3)"
        yield grid("rule", rules.places, across(value, scopes), by_slice, unit=unit)
        by_setting = f"Best {name} by setting (paper 004, appendix F)"
        yield grid("rule", rules.places, across(value, parts), by_setting, unit=unit)

    def chosen(setting: str, family: str) -> str:
        both = [made.choices(setting)[family] for made in (exact, timed) if setting in made.settings]
        return " / ".join(arm.partition(" ")[0] for arm in both)

    caption = "Shapes chosen on validation prompts: for block efficiency / for speed"
    yield grid("rule", rules.places, {setting: partial(chosen, setting) for setting in settings}, caption)
    yield from _of_shapes(rules, settings)


def _of_shapes(rules: Rules, settings: Mapping[str, By]) -> Iterator[Table]:
    """Of shapes with rules: chains, all of them, eleven drafts, times and depths."""
    roots, timed = rules.exact.test, rules.timed
    reference = By("T=1" if "T=1" in timed.settings else timed.settings[0])
    shapes = {family: list(dict.fromkeys(part["drafter"])) for family, part in roots.groupby("family")}
    chains = sorted(shapes.get("chain", ()), key=lambda name: chain_gamma(name) or 0)
    lengths, middle = {name: (name, reference) for name in chains}, chains[len(chains) // 2]
    by_setting = {name: (middle, by) for name, by in settings.items()}
    both = _against_tokenwise(rules)
    yield grid("chain", lengths, both, f"Chains by draft length, {reference.setting} (paper 001)")
    yield grid("setting", by_setting, both, f"{middle} by sampling setting (paper 001)")

    def paired(arm: str, by: By) -> Interval:
        """Over the best rule that reads the same tree: no chance of verification in it, and what trees differ in cancels."""
        shape = arm.partition(" ")[0]
        best = shape if shape in rules.exact.families else ruled(shape, "traversal")
        return rules.exact.speedup(arm, best, by)

    every = {shape: (shape, ALL) for shape in dict.fromkeys(roots["drafter"])}
    wide = str(roots[roots["family"] == "iid"].groupby("drafter")["nodes"].mean().idxmax())
    widest = {name: (wide, by) for name, by in settings.items()}
    whole = "Every shape with every rule, exact block efficiency, all settings"
    same, against = "Every rule against traversal (on chains: block) on the same trees, paired", _by_rule(rules, paired)
    yield grid("shape", every, _by_rule(rules, rules.expected), whole, unit=NUMBER)
    yield grid("shape", every, against, f"{same}, all settings", unit=TIMES)
    yield grid("setting", widest, against, f"{same}, on {wide}", unit=TIMES)
    arms = [arm for arm, family in rules.exact.families.items() if family.startswith("eleven")]
    eleven = {f"{arm}, {setting}": (arm, By(setting)) for arm in arms for setting in timed.settings}
    columns: dict[str, Metric] = {EXACT: rules.expected, "decoded": rules.kept, "tokens/s": timed.pace}
    columns |= timed.metrics(SPEEDUP, "time verifying")
    yield grid("arm", eleven, columns, "Eleven drafts of eight tokens (paper 001, Table 2)")
    drawn = (*chains, *shapes.get("eleven", ()))
    own = {arm: (arm, reference) for shape in drawn for arm in timed.families if arm.partition(" ")[0] == shape}
    spent = f"Where a token's time goes, {reference.setting} (paper 001, Table A.4)"
    yield grid("arm", own, timed.metrics("ms/token", *PARTS), spent)
    for made in acceptance(rules):
        yield replace(made, caption=f"Acceptance by depth, {made.caption} (paper 004, Figure 1)")


def _leaders(measure: str, leader: Callable[[By], First], places: Mapping[str, By]) -> Table:
    """The best rule by setting and by slice, and which others the data do not tell apart from it."""
    columns: dict[str, Metric] = {
        "first": lambda first: first.name,
        "value": lambda first: first.value,
        "not told apart from it": lambda first: listed(first.tied),
    }
    firsts = {name: (leader(by),) for name, by in places.items()}
    return grid("where", firsts, columns, f"Who leads where, by {measure}")


def _against_tokenwise(rules: Rules) -> dict[str, Metric]:
    """Of a chain: both rules, and what one gains over the other."""

    def tokenwise(value: Metric) -> Metric:
        return lambda chain, by: value(ruled(chain, "tokenwise"), by)

    return {
        "tokenwise, exact": tokenwise(rules.expected),
        "block = HSD, exact": rules.expected,
        "gain, exact": lambda chain, by: rules.exact.gain(chain, ruled(chain, "tokenwise"), by),
        "tokenwise, tokens/s": tokenwise(rules.timed.pace),
        "block, tokens/s": rules.timed.pace,
        "gain on the clock": lambda chain, by: rules.timed.gain(chain, ruled(chain, "tokenwise"), by),
    }


def _by_rule(rules: Rules, value: Metric) -> dict[str, Metric]:
    """A column for every rule: a value of its arm."""

    def of_rule(rule: str, shape: str, by: By) -> Cell:
        return value(ruled(shape, rule), by)

    return {name: partial(of_rule, name) for name in dict.fromkeys(rules.exact.test["verifier"])}
