"""Parameters of one pair from ``params.yaml``: numbers live there, paths live in ``dvc.yaml``."""

import argparse
import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import yaml

from pipelines.outputs import read_text
from predictors.config import Checked, Count, Whole, parse_config

Config = TypeVar("Config")
PARAMETERS = Path("params.yaml")
MACHINE = "machine"
RECIPE, RECIPES = "recipe", Path(__file__).with_name("predictors.yaml")  # of predictors


@dataclass(frozen=True)
class Machine(Checked):
    """Section ``machine``: what every other section takes from here unless it has its own.

    ``threads`` of torch, and of stages ``fit`` and ``replay`` at most so many processes. ``seed`` of all that is drawn: stages
    and prompts have streams of their own, by names that enter their keys.
    """

    threads: Count = 2
    seed: Whole = 0


def load_parameters(
    cls: type[Config], pair: str, section: str, path: Path = PARAMETERS, besides: Collection[str] = ()
) -> Config:
    """``pairs.<pair>.<section>`` of ``params.yaml`` as the dataclass ``cls``; unknown keys are refused by name.

    ``section`` may be dotted (``labels.chains``). Keys ``besides`` those of ``cls`` are left to the caller. What ``cls`` shares
    with `Machine` and the section leaves out is the machine's.
    """
    return parsed(cls, read_section(pair, section, path), pair, section, path, besides)


def parsed(
    cls: type[Config], values: Any, pair: str, section: str, path: Path, besides: Collection[str] = (), **machine: int
) -> Config:
    """``values`` of a section as `load_parameters` has them; ``machine``: what replaces the machine's own."""
    if isinstance(values, Mapping):
        read_machine(pair, path)
        known = read_pair(pair, path).get(MACHINE, {}) | machine
        values = _filled(cls, {key: value for key, value in values.items() if key not in besides}, known)
    return parse_config(cls, values, f"{path}: pairs.{pair}.{section}")


def read_machine(pair: str, path: Path = PARAMETERS) -> Machine:
    """Section ``machine`` of the pair; its defaults where there is none."""
    return parse_config(Machine, read_pair(pair, path).get(MACHINE, {}), f"{path}: pairs.{pair}.{MACHINE}")


def _filled(cls: type, values: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` of a dataclass, and of those within it that they name, with the machine's where they leave one out."""
    hints = get_type_hints(cls)
    filled = {name: value for name, value in machine.items() if name in hints} | dict(values)
    for name, value in values.items():
        options = (hints.get(name), *get_args(hints.get(name))[:1])  # what the field is, or may be
        nested = next((one for one in options if isinstance(one, type) and is_dataclass(one)), None)
        if isinstance(value, Mapping) and nested is not None:
            filled[name] = _filled(nested, value, machine)
    return filled


def read_section(pair: str, section: str, path: Path = PARAMETERS) -> Any:
    """``pairs.<pair>.<section>`` of ``params.yaml`` as it stands there."""
    values: Any = read_pair(pair, path)
    where = f"{path}: pairs.{pair}"
    for key in section.split("."):
        if not isinstance(values, dict):
            raise ValueError(f"{where}: expected a mapping of sections, got {values!r}.")
        if key not in values:
            raise ValueError(f"{where}: section {key!r} is missing. Sections there: {', '.join(values)}.")
        values, where = values[key], f"{where}.{key}"
    return values


def read_predictor(pair: str, name: str, path: Path = PARAMETERS) -> dict[str, Any]:
    """Section ``fit.<name>`` of the pair over the recipe that it names as ``recipe``, or else that of its own name, if there is
    one. `ValueError` for an unknown recipe."""
    values, where = read_section(pair, f"fit.{name}", path) or {}, f"{path}: pairs.{pair}.fit.{name}"
    if not isinstance(values, dict):
        raise ValueError(f"{where}: expected a mapping of what is other than in its recipe, got {values!r}.")
    recipes = parsed_yaml(RECIPES.read_text(encoding="utf-8"), str(RECIPES))
    named = values.get(RECIPE, name)
    if RECIPE in values and named not in recipes:
        raise ValueError(f"{where}: there is no recipe {named!r}. Recipes: {', '.join(recipes)}.")
    return _over(recipes.get(named, {}), {key: value for key, value in values.items() if key != RECIPE})


def _over(recipe: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` over those of a recipe, mapping by mapping."""
    return dict(recipe) | {
        key: _over(recipe.get(key) or {}, value)
        if isinstance(value, dict) and isinstance(recipe.get(key), dict)
        else value
        for key, value in values.items()
    }


def is_fitted(pair: str, name: str, path: Path = PARAMETERS) -> bool:
    """Whether the parameters name a predictor: else what lies there is stale. Without a section ``fit`` nothing is."""
    named = read_pair(pair, path).get("fit")
    return named is None or name in named


def read_pair(pair: str, path: Path = PARAMETERS) -> dict[str, Any]:
    """All sections of ``pairs.<pair>``."""
    document = parsed_yaml(read_text(path), str(path))
    pairs = document.get("pairs") if isinstance(document, dict) else None
    if not isinstance(pairs, dict):
        raise ValueError(f"{path}: there is no mapping of pairs under 'pairs:'.")
    if pair not in pairs:
        raise ValueError(f"{path}: no pair {pair!r} under 'pairs:'. Known pairs: {', '.join(pairs)}.")
    sections = pairs[pair]
    if not isinstance(sections, dict):
        raise ValueError(f"{path}: pairs.{pair}: expected a mapping of sections, got {sections!r}.")
    return sections


class Loader(yaml.SafeLoader):
    """Reads numbers as DVC does (YAML 1.2: ``1e-3``). Keys must be texts, as DVC leaves pairs of other names out in silence, and
    none twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            kind = key.tag.rpartition(":")[2]
            if kind not in ("str", "merge") or key.value in keys[:place]:
                twice = key.value in keys[:place]
                said = "is there twice" if twice else f"is no text but {kind}: put it in quotes, or change it"
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} {said}", key.start_mark)
        return node


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), None)


@functools.lru_cache(maxsize=2)
def parsed_yaml(text: str, where: str) -> Any:
    """Parsed once for all sections that are read of it, and changed by none; a `ValueError` begins with ``where``."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """``--pair`` and ``--params``, which every per-pair stage takes."""
    parser.add_argument("--pair", required=True, help="name of the pair under 'pairs:' in the parameter file")
    parser.add_argument("--params", type=Path, default=PARAMETERS, help="parameter file (default: %(default)s)")
