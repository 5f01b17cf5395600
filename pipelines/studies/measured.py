"""What the studies' reports begin with: their arguments, and a finished measurement of this device."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.device_file import read_device
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.report import ReportConfig


@dataclass(frozen=True)
class Measured:
    """A study's ``results``, the ``pair`` and the report's parameters, and the device's ``folder`` to write."""

    results: Any
    pair: str
    config: ReportConfig
    folder: Path


def read_measured(stage: str, section: str, description: str | None, read: Callable[[Path, Path], Any]) -> Measured:
    """Parse the command line of the report on ``stage`` and ``read(measurement, records)``; the process ends if there is none."""
    parser = argparse.ArgumentParser(prog=f"python -m pipelines.studies.{section}", description=description)
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("measured", type=Path, help=f"folder of the study's {stage} stage")
    parser.add_argument("records", type=Path, help="folder of the records of what was measured")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")
    args = parser.parse_args()
    config = load_parameters(ReportConfig, args.pair, section, args.params)
    device = read_device(args.device)["slug"]
    results = read(args.measured / device, args.records)
    if results is None:
        raise SystemExit(f"{args.measured / device} holds no finished measurement: run the {stage} stage first.")
    return Measured(results, args.pair, config, args.output / device)
