"""A challenger on trial: at which settings it serves, whether it can be tried at all, whether it is exact and how well its model
is calibrated; and what is timed beside it (champion, plain decoding, static chains), on documents that nothing was trained on.

Look 1 times prompts of the test share, every further look new ones of the reserve. Decodes of earlier looks are kept, so that
looks accumulate. Arms are paired by block at every sampling setting that challenger or champion was captured at.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.gate.plan import TrialConfig
from pipelines.gate.verdict import RESERVE
from pipelines.measuring.arm_rows import ArmRow, chain, expanded
from pipelines.measuring.bench import allocated, mix_of
from pipelines.measuring.exactness import format_of, greedy_differences
from pipelines.measuring.names import CHAIN, PLAIN, PLAIN_FAMILY, TEST
from pipelines.prompt_table import Prompt, read_prompts
from predictors.bundle import AUTO, bundle_hash, read_bundle
from predictors.config import parse_config
from predictors.controllers import DelayedTree, is_learned
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, load_decoder
from runtime.decoding.base import RoutedDecoder
from runtime.decoding.branch_parallel import BranchParallelDecoder


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
    """Why ``bundle`` cannot be read, does not serve ``pair``, or would be timed on a virtual clock; ``None``: it can."""
    try:
        settings_of(bundle)
        decoder = load_decoder(bundle, pair)
    except ValueError as error:
        return str(error)
    for name, one in parts_of(decoder).items():
        who = f"{bundle}: {name or 'its decoder'}"
        if isinstance(one, BranchParallelDecoder) and one.overlap.virtual:
            remedy = "Export it with overlap 'auto', 'threads' or 'streams'."
            if one.config.overlap == "auto":
                remedy = "Its overlap 'auto' finds a single core here: try it where there are more."
            return (
                f"{who} drafts and verifies sequentially (overlap 'none'), so its times would be a virtual clock's, not the wall "
                f"clock's. {remedy}"
            )
    return None


def parts_of(decoder: Decoder) -> dict[str, Decoder]:
    """The decoders that serve requests, by name: a routed decoder's are its routes'; any other is its own, without a name."""
    if not isinstance(decoder, RoutedDecoder):
        return {"": decoder}
    return {
        ", ".join(filter(None, (f"route {place} ({settings.name})", name))): part
        for place, (settings, route) in enumerate(decoder.routes, 1)
        for name, part in parts_of(route).items()
    }


def exact(pair: ModelPair, bundle: Path, prompts: Iterable[Sequence[int]], max_new_tokens: int) -> dict[str, bool]:
    """By route and prompt: whether greedy text is Hugging Face's own (`pipelines.measuring.exactness`). A route that serves other
    settings decodes greedily here, too: its drafts and its bookkeeping are the same."""
    decoder = load_decoder(bundle, pair)
    found = greedy_differences(pair, parts_of(decoder), prompts, max_new_tokens)
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
        found = [calibration_of(folder / name) for name in sorted(nested)]
        if any(one.error is None and one.exemption is None for one in found):
            return Calibration(None)
        known = [one.error for one in found if one.error is not None]
        exemptions = dict.fromkeys(str(one.exemption) for one in found)
        return Calibration(max(known)) if known else Calibration(None, "; ".join(exemptions))
    if bundle.card["kind"] == DelayedTree.kind:
        return Calibration(None, "a delayed-tree selector ranks trees and forecasts no probabilities")
    if not is_learned(bundle):
        return Calibration(None, "no model to calibrate")
    quality = bundle.card.get("measured_quality", {})
    errors = [quality.get(part, {}).get("ece") for part in ("metrics", "tokens")]
    return Calibration(max((float(error) for error in errors if error is not None), default=None))


@dataclass(frozen=True)
class Look:
    """The ``number``-th look (from 1): its ``prompts`` with those of earlier looks, how many documents it leaves unopened, and
    the ``mix`` that gains are weighed by: of all test prompts."""

    number: int
    prompts: tuple[Prompt, ...]
    documents_left: int
    mix: Mapping[str, float] | None = None

    @staticmethod
    def of(
        number: int,
        folder: Path,
        config: TrialConfig,
        least: int = 0,
        sort: Callable[[list[Prompt]], list[Prompt]] = list,
    ) -> "Look":
        """Of the prompts below ``folder``, allocated to slices by their documents, at first at least ``least`` of each; ``sort``:
        which test prompts go first. `ValueError` if there are no test prompts, or a further look finds no new document."""
        opened, before = ((look - 1) * config.reserve_prompts for look in (number, number - 1))
        known, reserve = read_prompts(folder, TEST), read_prompts(folder, RESERVE)
        if not known:
            raise ValueError(f"{folder} has no {TEST} prompts: there is nothing to try a bundle on. Draw some.")
        mix = mix_of(known)
        test = allocated(sort(known), mix, config.test_prompts, least)
        reserve = allocated(reserve, mix, len(reserve))
        seen = {prompt.document for prompt in (*test, *reserve[: max(before, 0)])}
        if number > 1 and not {prompt.document for prompt in reserve[before:opened]} - seen:
            raise ValueError(
                f"look {number} finds no new document among {len(reserve)} prompts of the {RESERVE}: documents exhausted. "
                "Add documents, or raise prompts.reserve, and draw again."
            )
        prompts = (*test, *reserve[:opened])
        left = {prompt.document for prompt in reserve[opened:]} - {prompt.document for prompt in prompts}
        return Look(number, prompts, len(left), mix)


def arms_of(config: TrialConfig, bundles: Mapping[str, Path]) -> list[ArmRow]:
    """Plain decoding, static chains, and ``bundles`` by arm: folders of the challenger and, if any, the champion."""
    rivals = [ArmRow(PLAIN, PLAIN_FAMILY, {"method": PLAIN})]
    rivals += [ArmRow(f"{CHAIN}-{{gamma}}", CHAIN, chain("{gamma}"), each={"gamma": config.gammas})]
    return expanded(rivals, "") + [ArmRow(name, name, bundle=str(folder.resolve())) for name, folder in bundles.items()]
