"""Bundles of controllers, and the capture contract, which travels with every trace shard, label table, bundle and decoder.

The most expensive silent bug of learned controllers is a mismatch between captured and served features. So the contract has
three parts: *identity* (a mismatch is an error), *serving range* (outside it the controller warns, and falls back where its
calibration does not hold) and *provenance* (recorded, never compared). What numbers a model computes in belongs to the range,
library versions are provenance; neither is part of an identity.

A bundle is a folder with ``controller.safetensors`` and ``card.json``. No pickle anywhere. The card holds kind, contract, feature
spec, calibration, thresholds, decoder configuration, measured quality and lineage (by content hashes only). The tensor file's
header holds a copy of the card, so that an edited card is noticed: what a controller may be trusted with is decided by training
and calibration, not by hand.
"""

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from predictors.config import Config, parse_config
from predictors.sampling import SamplingSettings

SCHEMA_VERSION = 1
LAYER_NUMBERING = "hf_hidden_states"  # 0: the embedding, i: the output of block i; the last one is after the final norm
STATE_PREDICTS = "next_token"  # the state at position i predicts token i + 1
WEIGHTS_TOLERANCE = 2.0**-8  # relative; a cast to bfloat16 moves a weight by up to 2^-9
TENSORS, CARD = "controller.safetensors", "card.json"
REMEDY = "Export the bundle again (dvc repro)."
CARD_KEYS = ("kind", "contract", "decoder")
OTHERWISE = "otherwise"  # card of another controller inside a bundle's, whose tensors are those of that one
AUTO = "auto"  # kind of a bundle that names a decoder for each of several sampling settings (``routes``)


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
    """Range that features were captured in: dtype, sampling settings (`SamplingSettings.numbers`) and context lengths."""

    dtype: str
    settings: tuple[tuple[float, ...], ...]
    min_context: int
    max_context: int

    @property
    def sampling(self) -> tuple[SamplingSettings, ...]:
        """Sampling settings of the range, as a request has them."""
        return tuple(SamplingSettings(row[0], int(row[1]), row[2], len(row) > 3) for row in self.settings)


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


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory. ``card['decoder']`` is the decoder configuration that the controller was made for."""

    card: dict[str, Any]
    tensors: dict[str, Tensor]
    source: str = "bundle"

    @property
    def contract(self) -> CaptureContract:
        return CaptureContract.from_json(self.card["contract"], f"{self.source}: card.json: contract")

    @property
    def otherwise(self) -> "Bundle":
        """The other controller's bundle inside this one."""
        return Bundle(self.card[OTHERWISE], self.tensors, f"{self.source}: {OTHERWISE}")

    def part(self, kind: type[Config], key: str) -> Config:
        """Parse the card's entry ``key`` as an object of ``kind``; `ValueError` as of `parse_config`."""
        return parse_config(kind, self.card[key], f"{self.source}: card.json: {key}")

    def parts(self, kind: type[Config], key: str) -> tuple[Config, ...]:
        """Parse the card's entry ``key``, a list, as objects of ``kind``; `ValueError` as of `parse_config`."""
        where = f"{self.source}: card.json: {key}"
        return tuple(parse_config(kind, made, f"{where}[{place}]") for place, made in enumerate(self.card[key]))

    def require(self, kind: str, *keys: str) -> None:
        """Raise `ValueError` unless the bundle holds a controller of ``kind`` whose card has ``keys``."""
        if self.card["kind"] != kind:
            raise ValueError(f"{self.source} holds a {self.card['kind']!r} controller, not {kind!r}.")
        missing = [key for key in keys if key not in self.card]
        if missing:
            raise ValueError(f"{self.source}: card.json lacks {', '.join(missing)}. {REMEDY}")

    def require_layers(self, layers: tuple[int, ...], spec: str) -> None:
        """Raise `ContractError` unless ``layers``, those of the card's ``spec``, are the contract's."""
        captured = self.contract.identity.layer_ids
        if captured != layers:
            raise ContractError(
                f"{self.source}: card.json: {spec}.layers {layers} are not the contract's layer_ids {captured}. {REMEDY}"
            )


def write_bundle(folder: str | Path, card: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write card and tensors; ``folder`` appears whole or not at all, and replaces an earlier bundle only when complete."""
    folder = Path(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        header = {"card": json.dumps(card, sort_keys=True, allow_nan=False)}
    except ValueError as error:
        raise ValueError(
            f"{folder}: the card holds a number that is not finite, so it cannot be trusted ({error})."
        ) from error
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial / TENSORS, metadata=header)
    (partial / CARD).write_text(json.dumps(card, indent=2, sort_keys=True) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def read_bundle(folder: str | Path) -> Bundle:
    """Read a bundle folder; `ValueError` if a file is missing or damaged, or the card is not the exported one."""
    folder = Path(folder)
    try:
        card = json.loads((folder / CARD).read_text())
        with safe_open(folder / TENSORS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            exported = json.loads((file.metadata() or {}).get("card", "null"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{folder} is not a controller bundle: {error}. {REMEDY}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError, SafetensorError) as error:
        raise ValueError(f"{folder}: damaged bundle ({error}). {REMEDY}") from error
    if not isinstance(card, dict):
        raise ValueError(f"{folder}: damaged bundle ({CARD} holds {type(card).__name__}, not an object). {REMEDY}")
    missing = [key for key in CARD_KEYS if key not in card]
    if missing or exported is None:
        raise ValueError(f"{folder}: card.json lacks {', '.join(missing) or 'its copy in the tensor file'}. {REMEDY}")
    changed = first_difference(exported, card, lambda _, was, now: bool(was == now))
    if changed is not None:
        name, was, now = changed
        raise ContractError(
            f"{folder}/{CARD} was edited: {name} was {was!r} when it was exported and is {now!r} now. {REMEDY}"
        )
    return Bundle(card, tensors, source=str(folder))


def bundle_hash(folder: str | Path) -> str:
    """Hash card and tensors by SHA-256: the bundle's identity in the registry. `ValueError` if there is no bundle."""
    try:
        return hashlib.sha256(b"".join((Path(folder) / name).read_bytes() for name in (CARD, TENSORS))).hexdigest()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{folder} is not a controller bundle: {error}. {REMEDY}") from error
