"""Frozen configuration dataclasses from plain mappings, with unknown keys refused by name."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Config = TypeVar("Config")


def parse_config(cls: type[Config], values: Mapping[str, Any], where: str) -> Config:
    """Build the dataclass ``cls`` from ``values``.

    Parameters
    ----------
    cls
        A dataclass; fields that are dataclasses, or mappings to some, are parsed from nested mappings; lists become tuples.
    values
        Keys must be field names of ``cls``.
    where
        How messages name the place of ``values``, for example ``params.yaml: pairs.pystdlib.train``.

    Raises
    ------
    ValueError
        For an unknown key (naming the nearest known one), a missing key or a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: expected a mapping of settings, got {values!r}.")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where}: unknown key {key!r}.{hint} Known keys: {', '.join(fields)}.")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{where}: key {name!r} is missing.")
    parsed = {key: _convert(hints[key], value, f"{where}.{key}") for key, value in values.items()}
    try:
        return cls(**parsed)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    hint = next(option for option in options if option is not type(None))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return parse_config(hint, value, where)
    origin = typing.get_origin(hint) or hint
    if origin is tuple and isinstance(value, list | tuple):
        element = typing.get_args(hint)[0]
        return tuple(_convert(element, item, f"{where}[{index}]") for index, item in enumerate(value))
    of = typing.get_args(hint)[-1:]  # what a mapping is to
    if origin is Mapping and isinstance(value, Mapping) and of and dataclasses.is_dataclass(of[0]):
        return {key: _convert(of[0], item, f"{where}.{key}") for key, item in value.items()}
    if origin is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: expected a finite number, got {value!r}.")
    if isinstance(origin, type) and (not isinstance(value, origin) or (isinstance(value, bool) and origin is not bool)):
        raise ValueError(
            f"{where}: expected {getattr(hint, '__name__', hint)}, got {value!r} ({type(value).__name__})."
        )
    return value
