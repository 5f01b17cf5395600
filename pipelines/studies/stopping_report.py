"""Stage of the studies: the grid of MCSD's experiments (widths, depths, k-configurations, static and dynamic) in tables.

Writes a folder named after the device: ``stopping.md`` and ``stopping.json``. α is the share of drafted levels that was accepted.

    draftwright studies.stopping_report --pair pystdlib --params pipelines/studies/params.yaml data/device.json
        data/pystdlib/studies/measured/stopping data/pystdlib/fit data/pystdlib/studies/stop_rules
"""

import argparse

from pipelines.measuring.names import CHAIN, PLAIN
from pipelines.reporting.comparison import Comparison, at
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.section import Cell, Column, Section, Table
from pipelines.reporting.stopping import FAMILIES
from pipelines.reporting.text import GAIN, NUMBER, TIMES, listed
from pipelines.studies.measured import add_arguments as add_arguments
from pipelines.studies.measured import read_study, write_study

COLUMNS = (
    Column("drafted"),
    Column("α", NUMBER),
    Column("tokens per target pass", NUMBER),
    Column("levels a round", NUMBER),
    Column("speed-up over plain", TIMES),
    Column("gain over the best static chain", GAIN),
)
PAIRS = ("rolled_back", "levels"), ("emitted", "rounds"), ("levels", "rounds")


def run(args: argparse.Namespace) -> None:
    study = read_study(args)
    write_study(study.folder, study.measured, grid(study.measured, study.pair))


def grid(measured: Measured, pair: str) -> Section:
    """Every arm at every sampling setting."""
    compared, tables = Comparison(measured), []
    for setting in measured.settings:
        by, rows = at(setting), list[tuple[Cell, ...]]()
        shown = [arm for arm in measured.arms(setting) if measured.families[arm] in FAMILIES]
        for arm in (PLAIN, *sorted(shown, key=lambda arm: (FAMILIES.index(measured.families[arm]), arm))):
            lost, *means = (compared.rate(arm, *pair, by)["value"] for pair in PAIRS)
            speeds = compared.speedup(arm, PLAIN, by), compared.gain(arm, CHAIN, by)
            rows.append((arm, None if lost is None else 1 - lost, *means, *speeds))
        tables.append(Table(COLUMNS, tuple(rows), setting))
    chosen = listed([f"{measured.chosen(CHAIN, setting)} at {setting}" for setting in measured.settings])
    return Section(
        "stopping",
        f"Stop rules and drafted trees on {pair}",
        f"The best static chain, chosen on validation prompts: {chosen}.",
        tuple(tables),
        notes=(
            "α is the share of drafted levels that was accepted. Trees are verified by `traversal`, chains by `block`.",
        ),
    )
