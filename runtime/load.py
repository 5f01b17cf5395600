"""Decoders from exported bundles.

A bundle of kind ``auto`` names a decoder for each of several sampling settings, with the bundles of their controllers in folders
below its own; each is loaded as if by itself.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictors.bundle import AUTO, REMEDY, Bundle, bundle_hash, read_bundle
from predictors.config import parse_config
from predictors.controllers import CONTROLLERS
from predictors.sampling import SamplingSettings
from runtime.build import build_decoder, built
from runtime.decoding.base import Decoder, RoutedDecoder
from runtime.identity import require_pair
from runtime.monitor import Monitor
from runtime.pair import ModelPair
from runtime.presets import expanded


@dataclass(frozen=True)
class Route:
    """A decoder for one sampling ``settings``: a configuration, or the ``bundle`` in a folder of that name, whose content hash is
    ``sha256``."""

    settings: SamplingSettings
    decoder: dict | None = None
    bundle: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        if (self.decoder is None) == (self.bundle is None):
            raise ValueError("a route is either a decoder's configuration or the name of a bundle.")
        if self.bundle in ("", "..") or (self.bundle is not None and Path(self.bundle).name != self.bundle):
            raise ValueError(f"bundle {self.bundle!r} is no folder's name.")


def load_decoder(
    bundle: str | Path,
    pair: ModelPair,
    changes: Mapping[str, Any] | None = None,
    latency: str | Path | None = None,
    reprice: bool = False,
    monitor: str | Path | None = None,
) -> Decoder:
    """Load the decoder that an exported bundle describes, after checking that the bundle was made for ``pair``.

    Parameters
    ----------
    bundle
        Folder of the bundle.
    pair
        The models.
    changes
        Keys that replace those of the bundle's own decoder configuration (``{"overlap": "none"}``); a ``preset`` replaces all.
    latency
        File of the pair's latency profile on this machine: a controller that follows prices warns if they are others here.
    reprice
        Let such a controller follow the prices of ``latency`` instead of those it was exported with.
    monitor
        File to which a line about every request goes, for ``draftwright drift`` (`runtime.monitor`).

    Raises
    ------
    ContractError
        If the bundle was made for another pair or other features: names the field, both values and the remedy.
    """
    if monitor is not None and (changes or reprice):
        other = f"changes {sorted(changes)} serve" if changes else "reprice=True serves"
        raise ValueError(
            f"monitor is for comparing what is served with what {bundle} describes, and {other} something else. Leave one of "
            "the two out."
        )
    loaded = read_bundle(bundle)
    if loaded.card["kind"] == AUTO:
        if changes or reprice:
            raise ValueError(
                f"{bundle} chooses a decoder for every sampling setting: changes and reprice would speak to all of them at once. "
                "Load one of the bundles in it instead, or run draftwright tune on this machine."
            )
        decoder: Decoder = _routed(Path(bundle), loaded, pair, latency)
    else:
        decoder = _single(Path(bundle), loaded, pair, changes, latency, reprice)
    if monitor is not None:
        sha256 = bundle_hash(bundle)
        routes = decoder.routes if isinstance(decoder, RoutedDecoder) else []
        for settings, route in routes:
            route.monitor = Monitor(monitor, sha256, settings.name)
        if not routes:
            decoder.monitor = Monitor(monitor, sha256)
    return decoder


def _single(
    bundle: Path,
    loaded: Bundle,
    pair: ModelPair,
    changes: Mapping[str, Any] | None,
    latency: str | Path | None,
    reprice: bool,
) -> Decoder:
    kind = loaded.card["kind"]
    if kind not in [*CONTROLLERS]:  # a list needs no hash, as a damaged kind may have none
        raise ValueError(f"{bundle}: unknown controller kind {kind!r}. Update draftwright, or export the bundle again.")
    given, own = dict(changes or {}), loaded.card["decoder"]
    if not isinstance(own, dict):
        raise ValueError(f"{bundle}: card.json: decoder must be an object, got {own!r}. {REMEDY}")
    config = expanded(given if "preset" in given else own | given)
    try:
        controller = CONTROLLERS[kind].from_bundle(loaded)
    except (TypeError, KeyError, AttributeError) as error:  # a value of another type than every exported card's
        raise ValueError(f"{bundle}: damaged bundle (card.json: {error}). {REMEDY}") from error
    if latency is not None:
        from predictors.latency.profile import read_profile
        from predictors.latency.soundness import noise_warning

        profile = read_profile(latency)
        warning = noise_warning(profile)
        if warning is not None:
            warnings.warn(warning, stacklevel=3)
        controller = controller.at_latency(profile, reprice)
    elif reprice:
        raise ValueError("reprice=True needs the latency profile to take prices from: name its file as latency.")
    decoder = built(pair, config, controller, f"{bundle}: card.json: decoder")
    decoder.verification = None if not given.get("verifier") else decoder.verification
    return decoder


def _routed(folder: Path, loaded: Bundle, pair: ModelPair, latency: str | Path | None) -> RoutedDecoder:
    """Load the decoders of a bundle of kind ``auto``."""
    require_pair(loaded.contract.identity, pair, f"bundle {folder}")
    routes = [
        parse_config(Route, route, f"{folder}: card.json: routes[{place}]")
        for place, route in enumerate(loaded.card["routes"])
    ]
    if not routes:
        raise ValueError(f"{folder}: card.json: routes is empty. Run draftwright tune again.")
    return RoutedDecoder(pair, [(route.settings, _route(folder, route, pair, latency)) for route in routes])


def _route(folder: Path, route: Route, pair: ModelPair, latency: str | Path | None) -> Decoder:
    if route.decoder is not None:
        decoder = build_decoder(pair, route.decoder)
        decoder.verification = None  # tuning's choice, and not the caller's
        return decoder
    assert route.bundle is not None
    place = folder / route.bundle
    decoder = load_decoder(place, pair, latency=latency)
    found = bundle_hash(place)
    if found != route.sha256:
        raise ValueError(
            f"{place} is not the bundle that {folder} was made of: its content hash is {found[:12]}, not "
            f"{(route.sha256 or 'unknown')[:12]}. Run draftwright tune again."
        )
    return decoder
