"""Stage of the studies: the page of a finished measurement, in a folder named after the device: tables, record and pictures.

verifiers       the full comparison of verification rules; ``--roots``: its exact expectations
stopping        the grid of MCSD's experiments: widths, depths, k-configurations, static and dynamic
self_drafting   the grid of the paper on progressive tree drafting: children, depth, how guesses are drawn

draftwright studies.report --of stopping --pair pystdlib --params pipelines/studies/params.yaml data/device.json
    data/pystdlib/studies/measured/stopping data/pystdlib/studies/reports/stopping
"""

import argparse
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from pipelines.device_file import read_device
from pipelines.measuring.names import CHAIN, HF_LOOKUP, HF_PLAIN, PLAIN
from pipelines.measuring.provenance import measured_on
from pipelines.parameters import add_pair_arguments
from pipelines.reporting.comparison import By
from pipelines.reporting.inputs import Measured, read_measured
from pipelines.reporting.page import write_page
from pipelines.reporting.plots import BLUE, GREEN, PURPLE, panels, picture
from pipelines.reporting.section import SPEEDUP, Section, Table, grid
from pipelines.reporting.self_drafting import CANDIDATES, DE, GUESSES, PASSES, UPKEEP, own_arms
from pipelines.reporting.speed import arm_table
from pipelines.reporting.stopping import FAMILIES
from pipelines.reporting.text import arm_name, listed
from pipelines.reporting.verifiers import Rules, of_rules, read_rules
from pipelines.studies.verifier_tables import tables

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
