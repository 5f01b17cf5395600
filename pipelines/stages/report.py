"""Stage ``report``: turn one device's measurements into one page of findings, tables and plots.

Reads what the stages left of this device in the pair's data folder; what was not measured is left out, and said. Writes a folder
named after the device: ``index.html`` (one page, offline), ``report.md``, ``report.json`` (the same findings and tables) and the
plots. Intervals are 95 %, over documents.

    draftwright report --pair smollm2 --device data/device.json data/smollm2 data/smollm2/reports
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.parameters import add_pair_arguments
from pipelines.places import read_device

if TYPE_CHECKING:
    from pipelines.report.inputs import Inputs
    from pipelines.report.section import Section

PAGE, TEXT, RECORD = "index.html", "report.md", "report.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--device", type=Path, required=True, help="JSON file of the device stage")
    parser.add_argument("data", type=Path, help="the pair's data folder, with a folder of every stage")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from pipelines.report.inputs import Inputs
    from pipelines.report.page import html, png
    from pipelines.report.release import front
    from pipelines.report.replayed import oracle
    from pipelines.report.section import markdown

    inputs = Inputs(args.data, read_device(args.device)["slug"])
    made = sections(inputs)
    first, folder = front(inputs, oracle(inputs)), args.output / inputs.device
    folder.mkdir(parents=True, exist_ok=True)
    images = {one.name: png(one) for section in (first, *made) for one in section.pictures}
    for name, image in images.items():
        (folder / f"{name}.png").write_bytes(image)
    (folder / PAGE).write_text(html(first, made, images))
    (folder / TEXT).write_text("\n".join([f"# {first.finding}", "", *map(markdown, made)]))
    record = {"pair": first.name, "machine": first.title, "decision": first.finding}
    write_json(folder / RECORD, record | {"sections": {section.name: section.record() for section in made}})
    print("\n".join([str(folder / PAGE), first.finding]))


def sections(inputs: "Inputs") -> "list[Section]":
    """Make the sections in the order in which a reader would ask; the last names those with nothing to say."""
    from pipelines.report import fitted, latency, release, replayed, speed

    made = {
        "release": release.release(inputs),
        "speed": speed.main(inputs),
        "replay": replayed.replay(inputs),
        "latency": latency.section(inputs),
        **{kind: speed.of_kind(kind, inputs) for kind in speed.KINDS},
        "fitted": fitted.section(inputs),
        "rules": replayed.verifiers(inputs),
    }
    found = [section for section in made.values() if section is not None]
    missing = [name for name, section in made.items() if section is None]
    return [*found, release.origin(inputs, missing)]
