"""Stage of the studies: the grid of MCSD's experiments (widths, depths, k-configurations, static and dynamic) in tables.

Writes a folder named after the device: ``stopping.md`` and ``stopping.json``. α is the share of drafted levels that was accepted.

    draftwright studies.stopping_report --pair pystdlib --params pipelines/studies/params.yaml data/device.json
        data/pystdlib/studies/measured/stopping data/pystdlib/fit data/pystdlib/studies/stop_rules
"""

import argparse

from pipelines.measuring.names import CHAIN, PLAIN
from pipelines.reporting.comparison import Comparison
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.names import arm_name
from pipelines.reporting.section import Section, Table
from pipelines.reporting.speed import arm_table
from pipelines.reporting.stopping import FAMILIES
from pipelines.reporting.text import listed
from pipelines.studies.measured import add_arguments as add_arguments
from pipelines.studies.measured import read_study, write_study

NOTE = (
    "The rollback rate is 1 − α, α being the share of drafted levels that was accepted. Trees are verified by `traversal`, "
    "chains by `block`."
)


def run(args: argparse.Namespace) -> None:
    study = read_study(args)
    write_study(study.folder, study.measured, grid(study.measured, study.pair))


def grid(measured: Measured, pair: str) -> Section:
    """Every arm at every sampling setting, family by family; what validation prompts chose is marked."""

    def table(setting: str) -> Table:
        places = {
            arm: FAMILIES.index(measured.families[arm])
            for arm in measured.arms(setting)
            if measured.families[arm] in FAMILIES
        }
        return arm_table(
            Comparison(measured), setting, [PLAIN, *sorted(places, key=lambda arm: (places[arm], arm))], setting
        )

    chosen = listed([f"{arm_name(measured.chosen(CHAIN, setting))} at {setting}" for setting in measured.settings])
    return Section(
        "stopping",
        f"Stop rules and drafted trees on {pair}",
        f"The best static chain, chosen on validation prompts: {chosen}.",
        [table(setting) for setting in measured.settings],
        notes=[NOTE],
    )
