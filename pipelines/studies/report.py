"""Stage of the studies: the page of a finished measurement, in a folder named after the device: tables, record and pictures.

verifiers       the full comparison of verification rules, tables of papers 004 and 001 for one pair; ``--roots``: its exact
                expectations; verifying includes turning logits into distributions and committing the accepted path to the caches
stopping        the grid of MCSD's experiments: widths, depths, k-configurations, static and dynamic
self_drafting   the grid of the paper on progressive tree drafting: children, depth, how guesses are drawn

draftwright studies.report --of stopping --pair pystdlib --params pipelines/studies/params.yaml data/device.json
    data/pystdlib/studies/measured/stopping data/pystdlib/studies/reports/stopping
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from pipelines.device import read_device
from pipelines.measuring.names import CHAIN, HF_LOOKUP, HF_PLAIN, PLAIN, chain_gamma
from pipelines.measuring.provenance import measured_on
from pipelines.parameters import add_pair_arguments
from pipelines.reporting.comparison import ALL, PARTS, By, across
from pipelines.reporting.inputs import Measured, read_measured
from pipelines.reporting.page import write_page
from pipelines.reporting.plots import BLUE, GREEN, PURPLE, panels, picture
from pipelines.reporting.section import SPEEDUP, Cell, Metric, Section, Table, grid
from pipelines.reporting.self_drafting import CANDIDATES, DE, GUESSES, PASSES, UPKEEP, own_arms
from pipelines.reporting.speed import arm_table
from pipelines.reporting.stopping import FAMILIES
from pipelines.reporting.text import NUMBER, TIMES, WHOLE, Interval, arm_name, listed
from pipelines.reporting.verifiers import EXACT, First, Rules, acceptance, of_rules, read_rules, ruled

VERIFIERS = "verifiers"
STOPPING = (
    "The rollback rate is 1 − α, α being the share of drafted levels that was accepted. Trees are verified by `traversal`, "
    "chains by `block`."
)
COLOURS = {"lookahead": GREEN, "self": PURPLE}  # by the first letters of an arm of self-drafting; others are trees


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--of", choices=(VERIFIERS, *GRIDS), required=True, help="the study")
    parser.add_argument("--roots", type=Path, help="of verifiers: folder of the verifiers stage")
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("measured", type=Path, help="folder of the study's measure stage")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    device = read_device(args.device)["slug"]
    measured = read_measured(args.measured / device)
    if args.of != VERIFIERS:
        section = GRIDS[args.of](measured, args.pair)
    elif args.roots is None:
        raise ValueError("the page of verifiers needs --roots: the folder of the verifiers stage.")
    elif (rules := read_rules(args.roots / device, measured)) is None:
        raise ValueError(f"{args.roots / device} holds no finished comparison: run the verifiers stage first.")
    else:
        section = verifiers(rules, args.pair)
    write_study(args.output / device, measured, section)


def write_study(folder: Path, measured: Measured, section: Section) -> None:
    """A page of what was measured, its record and its pictures."""
    capped = " The time cap ended the study early." if measured.findings["capped"] else ""
    origin = (
        f"{measured.test['prompt'].nunique()} test prompts; two arms are compared on what both decoded. Intervals are 95 %, over "
        f"documents. {measured_on(measured.origin)}{capped}"
    )
    page = replace(section, notes=[*section.notes, origin])
    write_page(folder, page, section.record() | {"provenance": measured.origin})


def verifiers(rules: Rules, pair: str) -> Section:
    """The report's section with all of the study's tables."""
    made = of_rules(rules)
    return replace(made, title=f"Verification rules on {pair}", tables=[*made.tables, *tables(rules)])


def tables(rules: Rules) -> Iterator[Table]:
    """All of the study's, in the order in which they are read."""
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


def stopping(measured: Measured, pair: str) -> Section:
    """Every arm at every sampling setting, family by family; what validation prompts chose is marked."""
    families, made = measured.families, []
    for setting in measured.settings:
        own = [arm for arm in measured.arms(setting) if families[arm] in FAMILIES]
        own.sort(key=lambda arm: (FAMILIES.index(families[arm]), arm))
        made.append(arm_table(measured, setting, [PLAIN, *own], setting))
    chosen = listed([f"{arm_name(measured.chosen(CHAIN, setting))} at {setting}" for setting in measured.settings])
    finding = f"The best static chain, chosen on validation prompts: {chosen}."
    return Section("stopping", f"Stop rules and drafted trees on {pair}", finding, made, notes=[STOPPING])


def self_drafting(measured: Measured, pair: str) -> Section:
    """Every arm at every sampling setting; of static chains the best."""
    made = []
    for setting in measured.settings:
        own, by = own_arms(measured, setting), By(setting)
        arms = (PLAIN, measured.choices(setting).get(CHAIN, CHAIN), HF_LOOKUP, HF_PLAIN, *own)
        columns = measured.metrics(*PASSES, UPKEEP, of=own) | measured.metrics(SPEEDUP)
        made.append(grid("arm", {arm: (arm, by) for arm in measured.timed(arms, by)}, columns, setting))
    finding = (
        "Tokens committed a pass (DE), the share of passes with candidates (HR), and tokens committed in those (AL)."
    )
    pictures = [picture("self_drafting", "Speed-up over tokens fed to a pass", fed_and_speed, made)]
    return Section("self_drafting", f"Drafting without a draft model on {pair}", finding, made, pictures)


def fed_and_speed(tables: list[Table]) -> Figure:
    """Measured speed-up over the tokens fed to a pass besides the newest one, one panel per sampling setting."""
    figure, drawn = panels(tables, len(tables), 3.8)
    for axes, table in drawn:
        for row in table.record()["rows"]:
            if row[DE] is not None:
                dot = row[GUESSES] + row[CANDIDATES], row[SPEEDUP]["value"]
                colour = next((own for name, own in COLOURS.items() if row["arm"].startswith(name)), BLUE)
                axes.plot(*dot, "o", color=colour, markersize=4)
                axes.annotate(row["arm"], dot, fontsize=6, xytext=(3, 3), textcoords="offset points")
        axes.axhline(1, color="#333333", linewidth=1)
        axes.set(xlabel="guessed and candidate tokens a pass", ylabel=SPEEDUP)
        axes.grid(color="#e6e6e6")
    return figure


GRIDS = {"stopping": stopping, "self_drafting": self_drafting}
