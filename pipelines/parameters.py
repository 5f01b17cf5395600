"""Parameters of one pair from ``params.yaml``: numbers live there, paths live in ``dvc.yaml``."""

import argparse
from pathlib import Path
from typing import Any, TypeVar

import yaml

from predictors.config import parse_config

Config = TypeVar("Config")
PARAMETERS = Path("params.yaml")


def load_parameters(cls: type[Config], pair: str, section: str, path: Path = PARAMETERS) -> Config:
    """``pairs.<pair>.<section>`` of ``params.yaml`` as the dataclass ``cls``; unknown keys are refused by name.

    ``section`` may be dotted (``train.extended``).
    """
    return parse_config(cls, read_section(pair, section, path), f"{path}: pairs.{pair}.{section}")


def read_section(pair: str, section: str, path: Path = PARAMETERS) -> Any:
    """``pairs.<pair>.<section>`` of ``params.yaml`` as it stands there."""
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    pairs = document.get("pairs") if isinstance(document, dict) else None
    if not isinstance(pairs, dict):
        raise ValueError(f"{path}: there is no mapping of pairs under 'pairs:'.")
    if pair not in pairs:
        raise ValueError(f"{path}: no pair {pair!r} under 'pairs:'. Known pairs: {', '.join(pairs)}.")
    values, where = pairs[pair], f"{path}: pairs.{pair}"
    for key in section.split("."):
        if not isinstance(values, dict):
            raise ValueError(f"{where}: expected a mapping of sections, got {values!r}.")
        if key not in values:
            raise ValueError(f"{where}: section {key!r} is missing. Sections there: {', '.join(values)}.")
        values, where = values[key], f"{where}.{key}"
    return values


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """``--pair`` and ``--params``, which every per-pair stage takes."""
    parser.add_argument("--pair", required=True, help="name of the pair under 'pairs:' in the parameter file")
    parser.add_argument("--params", type=Path, default=PARAMETERS, help="parameter file (default: %(default)s)")
