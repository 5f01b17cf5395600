"""Bundles of controllers: a folder with ``controller.safetensors`` and ``card.json``. No pickle anywhere.

The card holds kind, contract, feature spec, calibration, thresholds, decoder configuration, measured quality and lineage (by
content hashes only). The tensor file's header holds a copy of the card, so that an edited card is noticed: what a controller
may be trusted with is decided by training and calibration, not by hand.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from predictors.config import Config, parse_config
from predictors.contract import CaptureContract, ContractError, first_difference

TENSORS, CARD = "controller.safetensors", "card.json"
REMEDY = "Export the bundle again (dvc repro)."
CARD_KEYS = ("kind", "contract", "decoder")
OTHERWISE = "otherwise"  # card of another controller inside a bundle's, whose tensors are those of that one
AUTO = "auto"  # kind of a bundle that names a decoder for each of several sampling settings (``routes``)


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
