"""The capture contract: one record that travels with every trace shard, label table, bundle and decoder.

The most expensive silent bug of learned controllers is a mismatch between captured and served features. So the record has
three parts: *identity* (a mismatch is an error), *serving range* (outside it the controller warns, and falls back where its
calibration does not hold) and *provenance* (recorded, never compared). What numbers a model computes in belongs to the range,
library versions are provenance; neither is part of an identity.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from predictors.config import parse_config
from predictors.sampling import SamplingSettings

SCHEMA_VERSION = 1
LAYER_NUMBERING = "hf_hidden_states"  # 0: the embedding, i: the output of block i; the last one is after the final norm
STATE_PREDICTS = "next_token"  # the state at position i predicts token i + 1
WEIGHTS_TOLERANCE = 2.0**-8  # relative; a cast to bfloat16 moves a weight by up to 2^-9


class ContractError(ValueError):
    """Error of captured and served features, or controller and pair, that do not belong together."""


@dataclass(frozen=True)
class ModelIdentity:
    """Identity of a model: what makes it the same under another dtype, name or path."""

    config_hash: str  # without names, dtypes and library versions
    weights: tuple[float, ...]  # a few of every parameter, compared with a tolerance so that a change of dtype survives


@dataclass(frozen=True)
class Identity:
    """Identity of captured features, compared field by field; all must agree. ``None``: unknown, matches only unknown."""

    target: ModelIdentity
    draft: ModelIdentity | None
    tokenizer_hash: str | None
    chat_template_hash: str | None
    layer_ids: tuple[int, ...]
    layer_numbering: str = LAYER_NUMBERING
    last_layer_post_norm: bool = True
    state_predicts: str = STATE_PREDICTS
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class ServingRange:
    """Range that features were captured in: dtype, sampling settings (temperature, top_k, top_p) and context lengths."""

    dtype: str
    settings: tuple[tuple[float, ...], ...]
    min_context: int
    max_context: int

    @property
    def sampling(self) -> tuple[SamplingSettings, ...]:
        """Sampling settings of the range, as a request has them."""
        return tuple(SamplingSettings(temperature, int(top_k), top_p) for temperature, top_k, top_p in self.settings)


@dataclass(frozen=True)
class CaptureContract:
    """Identity, serving range and provenance of captured features."""

    identity: Identity
    serving_range: ServingRange
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(record: Mapping[str, Any], where: str) -> "CaptureContract":
        """Parse what `to_json` wrote; `ContractError` names the field that is missing or unknown."""
        try:
            return parse_config(CaptureContract, record, where)
        except ValueError as error:
            raise ContractError(str(error)) from error


def require_same_identity(recorded: Identity, current: Identity, what: str, remedy: str) -> None:
    """Raise `ContractError` naming the first field in which ``recorded`` and ``current`` differ, both values and ``remedy``.

    ``what`` names the thing that carries ``recorded``, for example ``bundle data/p/bundles/hrad``.
    """
    changed = first_difference(dataclasses.asdict(recorded), dataclasses.asdict(current), _agree)
    if changed is not None:
        name, mine, theirs = changed
        raise ContractError(
            f"{what} does not belong here: {name} was {_show(mine)} when it was made and is {_show(theirs)} now. {remedy}"
        )


def first_difference(
    recorded: Any, current: Any, agree: Callable[[str, Any, Any], bool], name: str = ""
) -> tuple[str, Any, Any] | None:
    """Find the first entry of nested mappings on which two do not ``agree``: its name and both values."""
    if isinstance(recorded, Mapping) and isinstance(current, Mapping):
        names = {f"{name}.{key}".lstrip("."): key for key in {**recorded, **current}}
        found = (first_difference(recorded.get(key), current.get(key), agree, place) for place, key in names.items())
        return next((one for one in found if one is not None), None)
    return None if agree(name, recorded, current) else (name, recorded, current)


def _agree(name: str, mine: Any, theirs: Any) -> bool:
    if not name.endswith(".weights"):
        return bool(mine == theirs)
    return len(mine) == len(theirs) and all(
        math.isclose(a, b, rel_tol=WEIGHTS_TOLERANCE, abs_tol=1e-7) for a, b in zip(mine, theirs, strict=True)
    )


def _show(value: Any) -> str:
    if value is None:
        return "unknown"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
