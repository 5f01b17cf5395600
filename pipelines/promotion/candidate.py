"""A bundle before its trial: at which settings it serves, whether it can be tried at all, whether it is exact, and how well its
model is calibrated, as its card says."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.measuring.exactness import format_of, greedy_differences
from predictors.bundle import AUTO, bundle_hash, read_bundle
from predictors.config import parse_config
from predictors.controllers import DelayedTree, is_learned
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, load_decoder
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.routed import RoutedDecoder


def settings_of(*bundles: Path) -> tuple[SamplingSettings, ...]:
    """The sampling settings that any of ``bundles`` was captured at."""
    return tuple(
        dict.fromkeys(one for bundle in bundles for one in read_bundle(bundle).contract.serving_range.sampling)
    )


def served_at(bundle: Path, name: str, settings: SamplingSettings) -> tuple[dict[str, Any], dict[str, str]]:
    """How the bundle called ``name`` serves ``settings``: as a decoder's configuration or the name of a bundle, its own or a
    route's; and the content hash of that bundle."""
    card = read_bundle(bundle).card
    if card["kind"] != AUTO:
        return {"bundle": name}, {name: bundle_hash(bundle)}
    known = [
        (parse_config(SamplingSettings, route["settings"], f"{bundle}: routes"), route) for route in card["routes"]
    ]
    _, route = min(known, key=lambda one: one[0].distance(settings))
    if route.get("bundle") is None:
        return {"decoder": route["decoder"]}, {}
    return {"bundle": route["bundle"]}, {route["bundle"]: route["sha256"]}


def problem_of(bundle: Path, pair: ModelPair) -> str | None:
    """Why ``bundle`` cannot be read, does not serve ``pair``, changes the output's law, or would be timed on a virtual clock;
    ``None``: nothing speaks against a trial."""
    try:
        settings_of(bundle)
        decoder = load_decoder(bundle, pair)
    except ValueError as error:
        return str(error)
    problems = (_problem(f"{bundle}: {name or 'its decoder'}", one) for name, one in parts_of(decoder).items())
    return next((problem for problem in problems if problem is not None), None)


def parts_of(decoder: Decoder) -> dict[str, Decoder]:
    """The decoders that serve requests, by name: a routed decoder's are its routes'; any other is its own, without a name."""
    if not isinstance(decoder, RoutedDecoder):
        return {"": decoder}
    return {
        ", ".join(filter(None, (f"route {place} ({settings.name})", name))): part
        for place, (settings, route) in enumerate(decoder.routes, 1)
        for name, part in parts_of(route).items()
    }


def _problem(who: str, decoder: Decoder) -> str | None:
    if decoder.lossy:
        return f"{who} is lossy: its output need not follow the target's distribution. Export it without lossy=True."
    if isinstance(decoder, BranchParallelDecoder) and decoder.host.virtual:
        remedy = "Export it with overlap 'auto', 'processes' or 'streams'."
        if decoder.config.overlap == "auto":
            remedy = "Its overlap 'auto' finds a single core here: try it where there are more."
        return (
            f"{who} drafts and verifies sequentially (overlap 'none'), so its times would be a virtual clock's, not the wall "
            f"clock's. {remedy}"
        )
    return None


def exact(pair: ModelPair, bundle: Path, prompts: Iterable[Sequence[int]], max_new_tokens: int) -> dict[str, bool]:
    """By route and prompt: whether greedy text is Hugging Face's own (`pipelines.measuring.exactness`). A route that serves other
    settings decodes greedily here, too: its drafts and its bookkeeping are the same."""
    decoder = load_decoder(bundle, pair)
    found = greedy_differences(pair, parts_of(decoder), prompts, max_new_tokens)
    decoder.close()
    return {
        ", ".join(filter(None, (name, f"greedy text {number}, {format_of(pair)}"))): place is None
        for name, places in found.items()
        for number, place in enumerate(places, 1)
    }


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
    errors = [quality.get(part, {}).get("ece") for part in ("metrics", "tokens")]
    return Calibration(max((float(error) for error in errors if error is not None), default=None))


def _worst(found: Sequence[Calibration]) -> Calibration:
    if any(one.error is None and one.exemption is None for one in found):
        return Calibration(None)
    errors = [one.error for one in found if one.error is not None]
    if errors:
        return Calibration(max(errors))
    return Calibration(None, "; ".join(dict.fromkeys(str(one.exemption) for one in found)))
