"""Register exported bundles in the MLflow model registry (idempotent: one version per bundle content).

draftwright register
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path("data"), help="data folder (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    from pipelines.promotion.names import CHALLENGER
    from pipelines.registry import Registry
    from predictors.bundle import CARD

    folders = sorted(card.parent for card in args.data.glob(f"*/bundles/*/{CARD}"))
    if not folders:
        raise ValueError(f"no bundle under {args.data}/*/bundles/. Run the export stage (dvc repro) first.")
    registry = Registry()
    for folder in folders:
        made = registry.register(folder.parents[1].name, folder)
        state = "registered" if made.is_new else "already registered"
        print(f"{folder}: {state} as {made.name} version {made.version}, alias {CHALLENGER}")
