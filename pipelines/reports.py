"""Print where the reports are, their headline sentences, what would be released, and by which command."""

import argparse
import json
from pathlib import Path

from pipelines.report import PAGE, QUALITY, TIMING


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="?", default=Path("data"), help="data folder (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    from pipelines.reporting.release_report import ReleaseReport

    pages = sorted(args.data.glob(f"*/reports/*/{PAGE}"))
    if not pages:
        raise ValueError(f"no report below {args.data}. Run dvc repro (or make repro) first.")
    for page in pages:
        print(page)
        timing, quality = (json.loads((page.parent / name).read_text()) for name in (TIMING, QUALITY))
        released = (
            [] if timing.get("release") is None else ReleaseReport.sentences(quality["release"], timing["release"])
        )
        for sentence in (*timing["headline"], *released):
            print(f"  {sentence}")
        for verdict in (timing.get("release") or {"verdicts": ()})["verdicts"]:
            if verdict["passed"]:
                print(f"  draftwright promote --pair {page.parents[2].name} --predictor {verdict['bundle']}")
