"""What the studies' pages have in common: their arguments, a finished measurement of this device, and what is written."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.device_file import read_device
from pipelines.measuring.provenance import measured_on
from pipelines.outputs import write_json
from pipelines.parameters import add_pair_arguments
from pipelines.reporting.markdown import markdown, markdown_table
from pipelines.reporting.measured_folder import Measured, read_measured
from pipelines.reporting.page import png
from pipelines.reporting.section import Section


@dataclass(frozen=True)
class Study:
    """What was ``measured``, the folder of ``records`` of it, the ``pair``, and the device's ``folder`` to write."""

    measured: Measured
    records: Path
    pair: str
    folder: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("measured", type=Path, help="folder of the study's measure stage")
    parser.add_argument("records", type=Path, help="folder of the records of what was measured")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def read_study(args: argparse.Namespace) -> Study:
    """The measurement of this device."""
    device = read_device(args.device)["slug"]
    return Study(read_measured(args.measured / device), args.records, args.pair, args.output / device)


def write_study(folder: Path, measured: Measured, section: Section) -> None:
    """A page of what was measured, its record and its pictures."""
    capped = " The time cap ended the study early." if measured.findings["capped"] else ""
    origin = (
        f"{measured.test['prompt'].nunique()} test prompts; two arms are compared on what both decoded. Intervals are 95 %, over "
        f"documents. {measured_on(measured.origin)}{capped}"
    )
    page = replace(section, notes=[*section.notes, origin])
    write_page(folder, page, section.record() | {"provenance": measured.origin})


def write_page(folder: Path, section: Section, record: Mapping[str, Any]) -> None:
    """``NAME.md`` with a heading for every table, ``NAME.json`` with the ``record``, and the pictures."""
    tables = [f"## {table.caption}\n\n{markdown_table(replace(table, caption=''))}" for table in section.tables]
    shown = [f"![{picture.caption}]({picture.name}.png)" for picture in section.pictures]
    folder.mkdir(parents=True, exist_ok=True)
    for picture in section.pictures:
        (folder / f"{picture.name}.png").write_bytes(png(picture.figure))
    write_json(folder / f"{section.name}.json", record)
    path = folder / f"{section.name}.md"
    path.write_text("\n\n".join([markdown(replace(section, tables=()), level=1).strip(), *tables, *shown]) + "\n")
    print(f"{path}\n{section.finding}")
