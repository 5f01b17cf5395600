"""Frozen configuration dataclasses from plain mappings, with unknown keys refused by name.

A field declares what its values may be, and `Checked` refuses others, however the object came to be:

    @dataclass(frozen=True)
    class DraftConfig(Checked):
        gamma: Count = 10
        kind: Annotated[str, one_of("chain", "tree")] = "chain"
        lengths: Annotated[tuple[Count, ...], not_empty] = (1, 2)
        limit: Count | None = None  # None stands for itself
"""

import dataclasses
import difflib
import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, TypeVar

import numpy as np

Config = TypeVar("Config")
UNIONS = (types.UnionType, typing.Union)


@dataclasses.dataclass(frozen=True)
class Constraint:
    """Metadata of an annotated field: what its value must be, in words, and whether it is."""

    must: str
    holds: Callable[[Any], bool]


def _bounded(sign: str, holds: Callable[[float, float], bool]) -> Callable[[float], Constraint]:
    return lambda bound: Constraint(f"be {sign} {bound}", lambda value: holds(value, bound))


at_least, at_most = _bounded(">=", operator.ge), _bounded("<=", operator.le)
above, below = _bounded(">", operator.gt), _bounded("<", operator.lt)


def one_of(*known: str) -> Constraint:
    return Constraint(f"be one of {', '.join(known)}", lambda value: value in known)


def of_length(count: int) -> Constraint:
    return Constraint(f"have {count} entries", lambda value: len(value) == count)


not_empty = Constraint("name at least one", lambda value: len(value) > 0)
ascending = Constraint("ascend without repeats", lambda value: list(value) == sorted(set(value)))

Count = Annotated[int, at_least(1)]
Whole = Annotated[int, at_least(0)]
Positive = Annotated[float, above(0)]
NotNegative = Annotated[float, at_least(0)]
Probability = Annotated[float, at_least(0), at_most(1)]
Share = Annotated[float, at_least(0), below(1)]


class Checked:
    """Base of a dataclass whose fields' constraints hold in every object.

    Rules between fields stand in its own ``__post_init__``, which calls this one first.

    Raises
    ------
    ValueError
        Naming the field, what it must be and its value.
    """

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, hint in _annotations(own).items():
            _check(hint, getattr(self, name), name)

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete the values of a mapping that `parse_config` reads; a class may add some to those given."""
        return values


@functools.cache
def _annotations(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _check(hint: Any, value: Any, name: str) -> None:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if value is None or not inner:
        return
    if origin is Annotated:
        for constraint in inner[1:]:
            if isinstance(constraint, Constraint) and not constraint.holds(value):
                raise ValueError(f"{name} must {constraint.must}, got {value!r}.")
        _check(inner[0], value, name)
    elif origin in UNIONS:
        _check(_given(inner, value), value, name)
    elif origin in (tuple, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items() if origin is Mapping else enumerate(value)
        for key, item in items:
            _check(inner[0] if origin is tuple else inner[1], item, f"{name}[{key}]")


def _given(options: Iterable[Any], value: Any) -> Any:
    """Return the hint of a value that may be left out: of several, for a mapping or an object of one, a dataclass, and of those
    the first that knows all keys."""
    some = [option for option in options if option is not types.NoneType]
    nested = isinstance(value, Mapping) or dataclasses.is_dataclass(value)
    known = [option for option in some if nested and dataclasses.is_dataclass(option)]
    if isinstance(value, Mapping):
        known.sort(key=lambda option: not set(value) <= {field.name for field in dataclasses.fields(option)})
    return (known or some)[0]


class ByName(Mapping[str, Any]):
    """Classes by name, each imported when it is looked up: ``places`` are modules and names in a ``package``."""

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        self._package, self._places = package, places

    def __getitem__(self, name: str) -> Any:
        module, _, found = self._places[name].rpartition(".")
        return getattr(import_module(f"{self._package}.{module}"), found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def parse_config(cls: type[Config], values: Mapping[str, Any], where: str) -> Config:
    """Build the dataclass ``cls`` from ``values`` by field name.

    Fields that are dataclasses, or mappings to some, are parsed from nested mappings; lists become tuples, or arrays of numbers.
    ``where`` names the origin of ``values`` in messages, for example ``params.yaml: pairs.smollm2.train``.

    Raises
    ------
    ValueError
        For an unknown key (naming the nearest known one), a missing key or a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: expected a mapping of settings, got {values!r}.")
    if issubclass(cls, Checked):
        try:
            values = cls.completed(values)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
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
    options = typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,)
    if value is None and types.NoneType in options:
        return None
    hint = _given(options, value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return parse_config(hint, value, where)
    origin = typing.get_origin(hint) or hint
    if origin is np.ndarray:
        return _array(value, where)
    if origin is tuple and isinstance(value, list | tuple):
        element = typing.get_args(hint)[0]
        return tuple(_convert(element, item, f"{where}[{index}]") for index, item in enumerate(value))
    of = typing.get_args(hint)[-1:]  # what a mapping is to
    nested = any(dataclasses.is_dataclass(option) for one in of for option in (one, *typing.get_args(one)))
    if origin is Mapping and isinstance(value, Mapping) and nested:
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


def _array(value: Any, where: str) -> np.ndarray:
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: expected a regular grid of numbers ({error}).") from error
