"""Print where the reports are, and what each decided."""

import argparse
import json
from pathlib import Path

from pipelines.report import PAGE, RECORD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="?", default=Path("data"), help="data folder (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    pages = sorted(args.data.glob(f"*/reports/*/{PAGE}"))
    if not pages:
        raise ValueError(f"no report below {args.data}. Run dvc repro (or make repro) first.")
    for page in pages:
        record = json.loads((page.parent / RECORD).read_text())
        release = record["sections"].get("release", {})
        print("\n  ".join([str(page), record["decision"], *([release["finding"]] if release else [])]))
