"""Fetch a bundle from the MLflow model registry into a folder that ``load_decoder`` runs.

The content hash of what arrives must be the one that the version was tagged with when it was registered.

    draftwright fetch models:/pystdlib-hrad@champion served/hrad
    draftwright fetch models:/pystdlib-hrad/3 served/hrad
"""

import argparse
import re
from pathlib import Path

MODEL = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="models:/NAME@ALIAS or models:/NAME/VERSION")
    parser.add_argument(
        "folder", type=Path, help="folder to write; an earlier one is replaced when the new one is complete"
    )


def run(args: argparse.Namespace) -> None:
    from pipelines.registry import Registry

    found = MODEL.match(args.model)
    if found is None:
        raise ValueError(f"{args.model!r} names no registered model: say models:/NAME@ALIAS or models:/NAME/VERSION.")
    registry = Registry()
    version = found["version"] or registry.version_at(found["name"], found["alias"])
    sha256 = registry.fetch(found["name"], version, args.folder)
    print(f"{args.folder}: {found['name']} version {version}, content {sha256[:12]}")
