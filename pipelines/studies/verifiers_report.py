"""Stage of the studies: turn the full comparison of verification rules into JSON, plots and Markdown tables.

Writes a folder named after the device: ``verifiers.md``, ``verifiers.json`` and the section's plots.

    draftwright studies.verifiers_report --pair pystdlib --params pipelines/studies/params.yaml data/device.json
        data/pystdlib/studies/measured/verifiers data/pystdlib/studies/verifiers data/pystdlib/studies/reports
"""

import argparse
from dataclasses import replace

from pipelines.reporting.section import Section
from pipelines.reporting.verifier_rules import Rules, read_rules
from pipelines.reporting.verifiers import of_rules
from pipelines.studies.measured import add_arguments as add_arguments
from pipelines.studies.measured import read_study, write_study
from pipelines.studies.verifier_tables import tables


def run(args: argparse.Namespace) -> None:
    study = read_study(args)
    folder = study.records / study.folder.name
    rules = read_rules(folder, study.measured)
    if rules is None:
        raise ValueError(f"{folder} holds no finished comparison: run the verifiers stage first.")
    write_study(study.folder, study.measured, grid(rules, study.pair))


def grid(rules: Rules, pair: str) -> Section:
    """The report's section with all of the study's tables."""
    made = of_rules(rules)
    return replace(made, title=f"Verification rules on {pair}", tables=[*made.tables, *tables(rules)])
