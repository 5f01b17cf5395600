"""What requests of a bundle look like on recorded texts, for its card: the reference of `draftwright drift`.

The real controller decides and the text says what was accepted (`predictors.replay`), counted as the runtime counts requests
(`predictors.monitoring`). Texts are those of test documents, on which nothing was fitted or chosen.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.outputs import NOT_APPLICABLE, absent
from predictors.bundle import Bundle, read_bundle
from predictors.config import parse_config
from predictors.controllers import CONTROLLERS, Controller, build_controller
from predictors.monitoring import Reference, RequestCounts, read_reference
from predictors.replay.acceptance import BeyondRecordError
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.schema import TEST
from predictors.training.tables import TextTable

if TYPE_CHECKING:
    from runtime.drafting import Drafter


def reference(card: Mapping[str, Any], tensors: Mapping[str, Any], texts: Callable[[], TextTable]) -> dict[str, Any]:
    """The card's entry of a bundle, by recorded ``texts``, which are read where it can be replayed on them."""
    bundle = Bundle(dict(card), dict(tensors))
    try:
        require_chains(card["decoder"])  # before the runtime is loaded and texts are read, which takes seconds
        from runtime.presets import expanded

        controller = CONTROLLERS[card["kind"]].from_bundle(bundle)
        known = bundle.contract.serving_range.sampling
        some = [text for text in texts().rows(TEST).texts() if text.settings in known]
        return _entry(_references(expanded(card["decoder"]), controller, some))
    except BeyondRecordError as error:
        return _entry({}, str(error))


def routed_reference(routes: Iterable[Mapping[str, Any]], bundles: Path, texts: Path) -> dict[str, Any]:
    """The entry of a bundle whose ``routes`` name a decoder for each of some sampling settings: a bundle's own reference, or one
    made for a configuration."""
    references: dict[str, Reference] = {}
    missing = []
    for route in routes:
        settings = parse_config(SamplingSettings, route["settings"], "routes")
        try:
            references |= _of_route(route, settings, bundles, texts)
        except BeyondRecordError as error:
            missing.append(f"{settings.name}: {error}")
    return _entry(references, "; ".join(missing) or None)


def _of_route(route: Mapping[str, Any], settings: SamplingSettings, bundles: Path, texts: Path) -> dict[str, Reference]:
    """The reference at ``settings``; `BeyondRecordError` with the reason where there is none."""
    if "bundle" in route:
        found, missing = read_reference(read_bundle(bundles / route["bundle"]).card)
        if settings.name not in found:
            raise BeyondRecordError(missing)
        return {settings.name: found[settings.name]}
    if absent(texts):
        raise BeyondRecordError(NOT_APPLICABLE)
    from runtime.presets import default_controller, expanded

    decoder = expanded(route["decoder"])
    some = [text for text in TextTable.read(texts).rows(TEST).texts() if text.settings == settings]
    require_chains(decoder)
    controller = build_controller(decoder.get("controller") or default_controller(decoder["method"]))
    return _references(decoder, controller, some)


def _references(
    decoder: Mapping[str, Any], controller: Controller, texts: Iterable[RecordedText]
) -> dict[str, Reference]:
    """By sampling setting, what ``controller`` makes of ``texts`` in a ``decoder`` of that configuration."""
    if decoder.get("epsilon") is not None:
        controller = controller.with_epsilon(decoder["epsilon"])
    counted: dict[str, list[tuple[RequestCounts, str]]] = {}
    for text in texts:
        made = replayed_counts(decoder, controller, text)
        counted.setdefault(text.settings.name, []).append((made, text.document))
    return {name: Reference.of(*map(list, zip(*some, strict=True))) for name, some in counted.items()}


def replayed_counts(decoder: Mapping[str, Any], controller: Controller, text: RecordedText) -> RequestCounts:
    """Count what the runtime would have counted, had the text come out of this request. `BeyondRecordError` if the decoder or
    the controller goes beyond what was recorded."""
    from runtime.branching.draft import BranchDecoderConfig

    require_chains(decoder)
    verifier = decoder.get("verifier", "block")
    if decoder["method"] == "branch_parallel":
        config = parse_config(BranchDecoderConfig, decoder, "decoder")
        depth, rounds = config.gamma, replayed_branches(text, controller, config, verifier)
    else:
        policy = configured_policy(decoder, controller, verifier)
        assert policy is not None, "require_chains let it pass"
        depth, rounds = policy.depth, replayed(text, policy)
    counts = RequestCounts(text.budget, depth)
    for one in rounds:
        counts.add(one.emitted, one.submitted, one.accepted, one.forecasts, one.looked_up)
    return counts


def require_chains(decoder: Mapping[str, Any]) -> None:
    """`BeyondRecordError` where a ``decoder`` drafts more than chains and their branches at the target's temperature, which are
    all that text traces know. Presets are looked at when expanded."""
    if "preset" in decoder:
        return
    method, drafter = decoder.get("method"), {"kind": "chain", **(decoder.get("drafter") or {})}
    kind = drafter["kind"] if method == "speculative" else method
    if kind not in ("chain", "lookup", "branch_parallel"):
        raise BeyondRecordError(
            f"{kind} cannot be replayed, text traces hold chains and branches only. Watch its tokens/s"
        )
    heat = (drafter if method == "speculative" else decoder).get("draft_temperature")
    if heat is not None:
        raise BeyondRecordError(
            f"draft_temperature={heat} cannot be replayed, as texts are recorded with drafts at the target's own. Watch its "
            "tokens/s"
        )


def _entry(references: Mapping[str, Reference], missing: str | None = None) -> dict[str, Any]:
    return {"settings": {name: asdict(one) for name, one in references.items()}, "missing": missing}


def chain_policy(drafter: "Drafter", controller: Controller, verifier: str) -> ChainPolicy | None:
    """The policy of a decoder that drafts chains at the target's temperature, or looks up; ``None``: any other."""
    from runtime.drafting.chain import ChainConfig, LookupConfig

    if isinstance(drafter, LookupConfig):
        return ChainPolicy(controller, drafter.depth, verifier, drafter, drafts=False)
    if isinstance(drafter, ChainConfig) and drafter.draft_temperature is None:
        return ChainPolicy(controller, drafter.depth, verifier, drafter.lookup, leaves=drafter.leaves)
    return None


def configured_policy(decoder: Mapping[str, Any], controller: Controller, verifier: str) -> ChainPolicy | None:
    """Return the chain policy of an expanded configuration of method ``speculative``."""
    from runtime.drafting import DRAFTERS

    options = {"kind": "chain", **(decoder.get("drafter") or {})}
    kind = options.pop("kind")
    if kind not in ("chain", "lookup"):
        return None
    drafter: Any = parse_config(DRAFTERS[kind], options, "decoder.drafter")
    return chain_policy(drafter, controller, verifier)
