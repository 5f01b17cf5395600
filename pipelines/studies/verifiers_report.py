"""Stage of the studies: turn the full comparison of verification rules into JSON, plots and Markdown tables.

Writes a folder named after the device: ``verifiers.md``, ``verifiers.json`` and the section's plots.

    draftwright studies.verifiers_report --pair pystdlib --params pipelines/studies/params.yaml data/device.json
        data/pystdlib/studies/measured/verifiers data/pystdlib/studies/verifiers data/pystdlib/studies/reports
"""

import argparse
from pathlib import Path
from typing import Any

from pipelines.measuring.provenance import measured_on
from pipelines.studies.measured import add_arguments as add_arguments
from pipelines.studies.measured import read_study


def run(args: argparse.Namespace) -> None:
    from pipelines.reporting.verifier_rules import read_rules

    study = read_study(args)
    folder = study.records / study.folder.name
    rules = read_rules(folder, study.measured)
    if rules is None:
        raise ValueError(f"{folder} holds no finished comparison: run the verifiers stage first.")
    write_report(study.folder, study.pair, rules)


def write_report(folder: Path, pair: str, rules: Any) -> None:
    """All files of one device."""
    from dataclasses import replace

    from pipelines.outputs import write_json
    from pipelines.reporting.markdown import markdown
    from pipelines.reporting.verifiers import of_rules
    from pipelines.studies.verifier_tables import tables

    made = of_rules(rules)
    origin = rules.timed.measured.origin
    page = replace(
        made,
        title=f"Verification rules on {pair}",
        tables=(*made.tables, *tables(rules)),
        notes=(*made.notes, measured_on(origin)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {f"verifiers_{picture.name}": picture for picture in page.pictures}
    for name, picture in pictures.items():
        picture.figure.savefig(folder / f"{name}.png", dpi=150)
    write_json(folder / "verifiers.json", page.record() | {"provenance": origin})
    shown = [f"![{picture.caption}]({name}.png)" for name, picture in pictures.items()]
    (folder / "verifiers.md").write_text("\n\n".join([markdown(page, level=1).strip(), *shown]) + "\n")
    print(folder / "verifiers.md")
    print(page.finding)
