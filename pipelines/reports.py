"""Print where the reports are and their headline sentences."""

import argparse
import json
from pathlib import Path

from pipelines.report import PAGE, TIMING


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="?", default=Path("data"), help="data folder (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    pages = sorted(args.data.glob(f"*/reports/*/{PAGE}"))
    if not pages:
        raise ValueError(f"no report below {args.data}. Run dvc repro (or make repro) first.")
    for page in pages:
        print(page)
        for sentence in json.loads((page.parent / TIMING).read_text())["headline"]:
            print(f"  {sentence}")
