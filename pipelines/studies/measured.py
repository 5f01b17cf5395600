"""What the studies' reports begin with: their arguments, and a finished measurement of this device."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from pipelines.device_file import read_device
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.report import ReportConfig
from pipelines.reporting.measured_folder import Measured, read_measured


@dataclass(frozen=True)
class Study:
    """What was ``measured``, the folder of ``records`` of it, the ``pair`` and the report's parameters, and the device's
    ``folder`` to write."""

    measured: Measured
    records: Path
    pair: str
    config: ReportConfig
    folder: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("measured", type=Path, help="folder of the study's measure stage")
    parser.add_argument("records", type=Path, help="folder of the records of what was measured")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def read_study(args: argparse.Namespace, section: str) -> Study:
    """The measurement of the report with parameters ``section``."""
    config = load_parameters(ReportConfig, args.pair, section, args.params)
    device = read_device(args.device)["slug"]
    measured = read_measured(args.measured / device)
    return Study(measured, args.records, args.pair, config, args.output / device)
