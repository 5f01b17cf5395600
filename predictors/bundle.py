"""A controller bundle: a folder with ``controller.safetensors`` and ``card.json``. No pickle anywhere.

The card holds kind, contract, feature spec, calibration, thresholds, decoder configuration, measured quality and lineage (by
content hashes only). The contract is also embedded in the tensor file's header, so that an edited card is noticed.
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

from predictors.contract import CaptureContract, ContractError, require_same_identity

TENSORS, CARD = "controller.safetensors", "card.json"
CARD_KEYS = ("kind", "contract", "decoder")


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory. ``card['decoder']`` is the decoder configuration the controller was made for."""

    card: dict[str, Any]
    tensors: dict[str, Tensor]
    source: str = "bundle"

    @property
    def contract(self) -> CaptureContract:
        return CaptureContract.from_json(self.card["contract"], f"{self.source}: card.json: contract")


def write_bundle(folder: str | Path, card: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write card and tensors; ``folder`` appears whole or not at all, and replaces an earlier bundle only when complete."""
    folder = Path(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    header = {"contract": json.dumps(card["contract"], sort_keys=True)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial / TENSORS, metadata=header)
    (partial / CARD).write_text(json.dumps(card, indent=2, sort_keys=True) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def read_bundle(folder: str | Path) -> Bundle:
    """Read a bundle folder.

    Raises
    ------
    ValueError
        If a file is missing or damaged (naming it), or the card's contract was edited after export (`ContractError`).
    """
    folder = Path(folder)
    remedy = "Export the bundle again (draftwright export, or dvc repro)."
    try:
        card = json.loads((folder / CARD).read_text())
        with safe_open(folder / TENSORS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            header = json.loads((file.metadata() or {}).get("contract", "null"))
    except FileNotFoundError as error:
        raise ValueError(f"{folder} is not a controller bundle: {error}. {remedy}") from error
    except (json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(f"{folder}: damaged bundle ({error}). {remedy}") from error
    missing = [key for key in CARD_KEYS if key not in card]
    if missing or header is None:
        raise ValueError(f"{folder}: card.json lacks {', '.join(missing) or 'an embedded contract'}. {remedy}")
    bundle = Bundle(card, tensors, source=str(folder))
    exported = CaptureContract.from_json(header, f"{folder}: {TENSORS}: contract")
    require_same_identity(
        exported.identity, bundle.contract.identity, f"{folder}/{CARD}", f"The card was edited. {remedy}"
    )
    spec_layers = card.get("feature_spec", {}).get("layers")
    if spec_layers is not None and tuple(spec_layers) != bundle.contract.identity.layer_ids:
        raise ContractError(
            f"{folder}/{CARD}: feature_spec.layers {spec_layers} is not the contract's "
            f"layer_ids {list(bundle.contract.identity.layer_ids)}. {remedy}"
        )
    return bundle


def bundle_hash(folder: str | Path) -> str:
    """SHA-256 over card and tensors: the bundle's identity in the registry."""
    digest = hashlib.sha256()
    for name in (CARD, TENSORS):
        digest.update((Path(folder) / name).read_bytes())
    return digest.hexdigest()
