"""How well a bundle's model is calibrated, as its card says."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictors.bundle import read_bundle
from predictors.controllers import DelayedTree, is_learned


@dataclass(frozen=True)
class Calibration:
    """Expected calibration ``error`` of a bundle's model on documents that were not trained on; ``None``: unknown, or, with an
    ``exemption``, there is none to know."""

    error: float | None
    exemption: str | None = None


def calibration_of(folder: Path) -> Calibration:
    """The calibration of a bundle; of one with several in it, the worst: an unknown one before any number."""
    bundle = read_bundle(folder)
    nested = {route.get("bundle") for route in bundle.card.get("routes", [])} - {None}
    if nested:
        return _worst([calibration_of(folder / name) for name in sorted(nested)])
    if bundle.card["kind"] == DelayedTree.kind:
        return Calibration(None, "a delayed-tree selector ranks trees and forecasts no probabilities")
    if not is_learned(bundle):
        return Calibration(None, "no model to calibrate")
    quality = bundle.card.get("measured_quality", {})
    errors = [error for part in (quality, *quality.get("parts", {}).values()) for error in _errors(part)]
    return Calibration(max(errors, default=None))


def _errors(quality: Mapping[str, Any]) -> Iterator[float]:
    """Of a head's classes or of a stop model's tokens, over all settings or at one."""
    for part in ("metrics", "tokens"):
        found = quality.get(part, {})
        error = found.get("head", found).get("ece") if isinstance(found, Mapping) else None
        if error is not None:
            yield float(error)


def _worst(found: Sequence[Calibration]) -> Calibration:
    if any(one.error is None and one.exemption is None for one in found):
        return Calibration(None)
    errors = [one.error for one in found if one.error is not None]
    if errors:
        return Calibration(max(errors))
    return Calibration(None, "; ".join(dict.fromkeys(str(one.exemption) for one in found)))
