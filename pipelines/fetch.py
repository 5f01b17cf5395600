"""Fetch a bundle from the MLflow model registry, or from another folder, into a folder that ``load_decoder`` runs.

The content hash of what arrives must be the one that the version was tagged with when it was registered. A folder is copied
without MLflow, which a host that only serves need not have; a bundle that is damaged or was edited is refused.

    draftwright fetch models:/pystdlib-hrad@champion served/hrad
    draftwright fetch models:/pystdlib-hrad/3 served/hrad
    draftwright fetch /mnt/share/bundles/hrad served/hrad
"""

import argparse
import re
from pathlib import Path

MODEL = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="models:/NAME@ALIAS, models:/NAME/VERSION or a bundle's folder")
    parser.add_argument(
        "folder", type=Path, help="folder to write; an earlier one is replaced when the new one is complete"
    )


def run(args: argparse.Namespace) -> None:
    from pipelines.registry import Registry, copy_bundle, registered_model

    found = MODEL.match(args.model)
    if found is None and Path(args.model).is_dir():
        print(f"{args.folder}: a copy of {args.model}, content {copy_bundle(Path(args.model), args.folder)[:12]}")
        return
    if found is None:
        raise ValueError(
            f"{args.model!r} names no registered model and no folder: say models:/NAME@ALIAS, models:/NAME/VERSION or a path."
        )
    registry = Registry()
    name, alias, version = found["name"], found["alias"], found["version"]
    if alias:
        aliases = registered_model(registry.client, name).aliases
        if alias not in aliases:
            raise ValueError(f"{name} has no alias {alias!r}. Known: {', '.join(sorted(aliases)) or 'none'}.")
        version = str(aliases[alias])
    print(f"{args.folder}: {name} version {version}, content {registry.fetch(name, version, args.folder)[:12]}")
