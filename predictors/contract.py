"""The capture contract: one record that travels with every trace shard, label table, bundle and decoder.

The most expensive silent bug of learned controllers is a mismatch between captured and served features. So the record has
three parts: *identity* (a mismatch is an error), *serving range* (outside it the controller warns, and falls back where its
calibration does not hold) and *provenance* (recorded, never compared). What numbers a model computes in belongs to the range,
library versions are provenance; neither is part of an identity.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from predictors.config import parse_config
from predictors.sampling import SamplingSettings

SCHEMA_VERSION = 1
LAYER_NUMBERING = (
    "hf_hidden_states"  # 0 is the embedding, i the output of block i, the last one is after the final norm
)
STATE_PREDICTS = "next_token"  # the state at position i predicts token i + 1
WEIGHTS_TOLERANCE = 2.0**-8  # relative; a cast to bfloat16 moves a weight by up to 2^-9


class ContractError(ValueError):
    """Captured and served features, or controller and pair, do not belong together."""


@dataclass(frozen=True)
class ModelIdentity:
    """What makes a model the same model under another dtype, name or path.

    ``config_hash`` leaves out names, dtypes and library versions; ``weights`` are a few weights of every parameter, compared with
    a tolerance so that a change of dtype survives.
    """

    config_hash: str
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Identity:
    """Compared field by field; every field must agree. ``None`` means unknown and matches only unknown."""

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
    """Where features were captured: dtype, sampling settings (temperature, top_k, top_p) and context lengths."""

    dtype: str
    settings: tuple[tuple[float, ...], ...]
    min_context: int
    max_context: int

    @property
    def sampling(self) -> tuple[SamplingSettings, ...]:
        """The settings as a request has them."""
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
    for name, mine, theirs in _fields(recorded, current, prefix=""):
        same = _weights_agree(mine, theirs) if name.endswith(".weights") else mine == theirs
        if not same:
            raise ContractError(
                f"{what} does not belong here: {name} was {_show(mine)} when it was made and is {_show(theirs)} now. {remedy}"
            )


def _fields(recorded: Any, current: Any, prefix: str) -> list[tuple[str, Any, Any]]:
    rows = []
    for field in dataclasses.fields(recorded):
        mine, theirs = getattr(recorded, field.name), getattr(current, field.name)
        if dataclasses.is_dataclass(mine) and dataclasses.is_dataclass(theirs):
            rows += _fields(mine, theirs, f"{prefix}{field.name}.")
        else:
            rows.append((prefix + field.name, mine, theirs))
    return rows


def _weights_agree(mine: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(mine) == len(theirs) and all(
        math.isclose(a, b, rel_tol=WEIGHTS_TOLERANCE, abs_tol=1e-7) for a, b in zip(mine, theirs, strict=True)
    )


def _show(value: Any) -> str:
    if value is None:
        return "unknown"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
