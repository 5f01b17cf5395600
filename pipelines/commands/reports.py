"""Print where the reports are, what each decided, and by which commands bundles that the gate passed are promoted.

draftwright reports
"""

import argparse
import json
from pathlib import Path

from pipelines.gate.verdict import PASSED
from pipelines.stages.report import PAGE, RECORD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="?", default=Path("data"), help="data folder (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    pages = [page for page in sorted(args.data.glob(f"*/reports/*/{PAGE}")) if (page.parent / RECORD).is_file()]
    if not pages:
        raise ValueError(f"no report below {args.data}. Run dvc repro (or make repro) first.")
    for page in pages:
        record = json.loads((page.parent / RECORD).read_text())
        release = record["sections"].get("release", {})
        print("\n  ".join([str(page), record["decision"], *([release["finding"]] if release else [])]))
        for row in release["tables"][-1]["rows"] if release else []:
            if row.get("verdict") == PASSED:
                print(f"  draftwright promote --pair {page.parents[2].name} --predictor {row['bundle']}")
