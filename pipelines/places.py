"""Where a pair's files are, for commands that people type: below ``data/PAIR``, unless the command line says otherwise."""

import argparse
from collections.abc import Mapping
from pathlib import Path


def add_place_arguments(parser: argparse.ArgumentParser, places: Mapping[str, str]) -> None:
    """``--data``, ``--device``, and an option for each of ``places``: folders below the pair's own."""
    parser.add_argument("--data", type=Path, default=Path("data"), help="data folder (default: %(default)s)")
    parser.add_argument("--device", type=Path, help="JSON file of the device stage (default: device.json there)")
    for name, place in places.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=Path, help=f"default: {place} below the pair's folder")


def fill_in(args: argparse.Namespace, places: Mapping[str, str]) -> None:
    """Set what the command line left out; `ValueError` if this machine was never described."""
    for name, place in places.items():
        if getattr(args, name) is None:
            setattr(args, name, args.data / args.pair / place)
    args.device = args.device or args.data / "device.json"
    if not args.device.is_file():
        raise ValueError(f"{args.device} is missing: run dvc repro (or make repro) first.")
