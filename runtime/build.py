"""Decoders from configurations; named ones are `runtime.presets`."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from predictors.config import parse_config
from predictors.controllers import Controller, build_controller
from runtime.decoding.base import Decoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting import DRAFTERS, Drafter
from runtime.drafting.trees import DelayedTreeConfig
from runtime.identity import require_pair
from runtime.pair import ModelPair
from runtime.presets import default_controller, expanded
from runtime.self_drafting import GUESSERS
from runtime.verification import VERIFIERS, Verifier


@dataclass(frozen=True)
class DecoderConfig:
    """Configuration of a sequential decoder; see `build_decoder`."""

    method: str
    drafter: dict | None = None
    verifier: str = "block"
    controller: dict | None = None


PAIR_METHODS = ("speculative", "branch_parallel")


def build_decoder(pair: ModelPair, config: Mapping[str, Any]) -> Decoder:
    """Build a decoder.

    Parameters
    ----------
    pair
        The models.
    config
        ``method``: ``autoregressive`` (the target alone), ``speculative`` with ``drafter``, ``verifier`` (of `VERIFIERS`) and
        ``controller`` (``{"kind": "entropy"}``; default ``fixed``), ``branch_parallel`` with the keys of `BranchConfig`, the
        ``verifier`` of its pending block, and a ``controller`` (default ``confidence``, at ``epsilon``); or, without a draft,
        ``progressive_tree``, ``lookahead`` and ``self_draft`` with the keys of `runtime.self_drafting`. Drafters: ``{"kind":
        "chain", "gamma": 5}``, ``{"kind": "delayed_tree", "k": 3, "l1": 1, "l2": 3}``, ``{"kind": "multi_candidate", "config":
        [4, 2, 2, 1]}``, ``{"kind": "fork", "width": 4, "depth": 3}`` and, without a draft model, ``{"kind": "lookup", "length":
        10}``; of a chain with a ``lookup`` (``{"kind": "chain", "gamma": 12, "lookup": {"length": 10}}``) the controller chooses.
        ``preset`` names a configuration (`runtime.presets`) that given keys override. ``invariant: true`` is the decoder's own
        way to sample (`runtime.invariant`): texts follow from the seed alone.

    Raises
    ------
    ValueError
        Naming the key, its value and the known ones.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    >>> pair = ModelPair(LlamaForCausalLM(LlamaConfig(**sizes)), LlamaForCausalLM(LlamaConfig(**sizes)))
    >>> decoder = build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}})
    >>> len(decoder.generate([1, 2, 3], max_new_tokens=8, eos_token_id=[]).tokens)
    8
    """
    return built(pair, expanded(config), None, "decoder")


def built(pair: ModelPair, config: Mapping[str, Any], controller: Controller | None, where: str) -> Decoder:
    """Build a decoder of an expanded configuration; ``controller=None``: the configuration's. ``where`` names it in errors."""
    options, method = dict(config), config.get("method")
    invariant = options.pop("invariant", False)
    if not isinstance(invariant, bool):
        raise ValueError(f"{where}: invariant must be true or false, got {invariant!r}.")
    if invariant and method == "speculative":
        options.setdefault("verifier", "match")
    if method in [*GUESSERS]:  # a list, as a method read from a file may have no hash
        decoder = _single_model(pair, options, controller, where)
    else:
        build = _branch_parallel if method == "branch_parallel" else _sequential
        decoder = build(pair, options, controller, where)
    decoder.invariant, decoder.verification = invariant, config.get("verifier")
    if invariant:
        decoder.require_match()
    return decoder


def _branch_parallel(pair: ModelPair, config: Mapping[str, Any], controller: Controller | None, where: str) -> Decoder:
    from runtime.branching.draft import BranchDecoderConfig
    from runtime.decoding.branch_parallel import BranchParallelDecoder

    _require_draft(pair, "branch_parallel")
    parsed = parse_config(BranchDecoderConfig, config, where)
    chains = [name for name, verifier in VERIFIERS.items() if verifier.chains_only]
    if parsed.verifier not in chains:
        raise ValueError(
            f"{where}: the pending block is a chain; its verifier must be one of {', '.join(chains)}, got {parsed.verifier!r}."
        )
    controller = controller or build_controller(parsed.controller or default_controller(parsed.method))
    if parsed.epsilon is not None:
        controller = controller.with_epsilon(parsed.epsilon)
    if controller.follows_one_draft and parsed.retention == "prior":
        raise ValueError(
            f"{where}: retention 'prior' runs the controller on every branch, and {controller.kind} follows one "
            "draft: the text would be exact, the rule not its own. Use retention 'posterior'."
        )
    if controller.actions:
        raise ValueError(
            f"{where}: a {controller.kind} controller chooses among delayed trees, and branch_parallel drafts chains. Use method "
            "'speculative'."
        )
    _require_fit(controller, pair, parsed.gamma, where, where)
    return BranchParallelDecoder(pair, parsed, VERIFIERS[parsed.verifier], controller)


def _single_model(pair: ModelPair, config: Mapping[str, Any], controller: Controller | None, where: str) -> Decoder:
    from runtime.branching.draft import BranchDecoderConfig
    from runtime.decoding.single_model import SingleModelDecoder

    options = dict(config)
    method = options.pop("method")
    known = {field.name for field in fields(GUESSERS[method])}
    of_pairs = {field.name for one in (DecoderConfig, BranchDecoderConfig) for field in fields(one)}
    foreign = sorted(of_pairs & set(options) - known)
    if foreign:
        raise ValueError(
            f"{where}: method {method!r} drafts with the target alone, and {', '.join(foreign)} belongs to methods with a draft "
            f"model ({', '.join(PAIR_METHODS)}). Its own keys: {', '.join(sorted(known))}."
        )
    decoder = SingleModelDecoder(pair, parse_config(GUESSERS[method], options, where))
    if controller is not None and controller.contract is not None:
        require_pair(controller.contract.identity, pair, f"{controller.kind} controller")
    return decoder


class NoDraftError(ValueError):
    """Error of a decoder that needs a draft model, where the pair has none."""


def _require_draft(pair: ModelPair, method: str, otherwise: str = "") -> None:
    if pair.draft is None:
        raise NoDraftError(
            f"decoder: method {method!r} needs a draft model; this pair has none. Without one: {otherwise}methods "
            f"autoregressive, {', '.join(GUESSERS)}."
        )


def _sequential(pair: ModelPair, config: Mapping[str, Any], controller: Controller | None, where: str) -> Decoder:
    parsed = parse_config(DecoderConfig, config, where)
    controller = controller or build_controller(parsed.controller or default_controller(parsed.method))
    verifier = _verifier(parsed.verifier)
    if parsed.method == "autoregressive":
        if parsed.drafter or parsed.controller:
            raise ValueError(
                "decoder: method 'autoregressive' takes neither drafter nor controller; use 'speculative'."
            )
        return SequentialDecoder(pair, None, verifier, controller)
    if parsed.method != "speculative":
        known = ", ".join(["autoregressive", *PAIR_METHODS, *GUESSERS])
        raise ValueError(f"decoder: unknown method {parsed.method!r}. Known methods: {known}.")
    drafter = _choosing(_drafter(parsed.drafter), controller, verifier.name)
    if drafter.needs_draft:
        _require_draft(pair, parsed.method, 'drafter {"kind": "lookup"}, ')
    _require_fit(controller, pair, drafter.depth, "decoder.drafter", where)
    return SequentialDecoder(pair, drafter, verifier, controller)


def _drafter(config: Mapping[str, Any] | None) -> Drafter:
    options = dict(config or {"kind": "chain"})
    kind = options.pop("kind", None)
    if "choices" in options:
        raise ValueError("decoder.drafter: choices are the controller's: name the bundle of one instead.")
    if kind not in [*DRAFTERS]:
        raise ValueError(f"decoder.drafter: unknown kind {kind!r}. Known kinds: {', '.join(DRAFTERS)}.")
    return parse_config(DRAFTERS[kind], options, "decoder.drafter")


def _choosing(drafter: Drafter, controller: Controller, verifier: str) -> Drafter:
    """Give ``drafter`` the trees that ``controller`` chooses among."""
    if not controller.actions:
        return drafter
    if not isinstance(drafter, DelayedTreeConfig):
        raise ValueError(
            f"decoder: a {controller.kind} controller chooses among delayed trees, and the drafter is {drafter}. Use "
            '{"kind": "delayed_tree"}.'
        )
    if verifier != controller.verifier or drafter.draft_temperature is not None:
        warnings.warn(
            f"the {controller.kind} controller was trained for verifier {controller.verifier!r} and drafts at the target's "
            f"temperature, and serves {verifier!r} at draft_temperature={drafter.draft_temperature}: its choices may not pay.",
            stacklevel=4,
        )
    return replace(drafter, choices=controller.actions)


def _verifier(name: str) -> Verifier:
    if name not in VERIFIERS:
        raise ValueError(f"decoder: unknown verifier {name!r}. Known verifiers: {', '.join(VERIFIERS)}.")
    return VERIFIERS[name]


def _require_fit(controller: Controller, pair: ModelPair, gamma: int, drafter: str, where: str) -> None:
    """Check that ``controller`` fits the pair and its drafts. `ValueError` for drafts shorter than it decides about,
    `ContractError` for another pair, a warning where features are served in another number format than captured: one belongs to
    the device, the other to the pair, so they may differ. Decoding stays exact and the controller in force."""
    if controller.horizon is not None and gamma < controller.horizon:
        raise ValueError(
            f"{drafter}: gamma={gamma} is shorter than the {controller.horizon} tokens the {controller.kind} "
            f"controller decides about. Use gamma >= {controller.horizon}."
        )
    contract = controller.contract
    if contract is None:
        return
    require_pair(contract.identity, pair, f"{controller.kind} controller")
    dtype = str(pair.target.dtype).removeprefix("torch.")
    captured = contract.serving_range.dtype
    if dtype != captured:
        source, card, _ = where.partition(": card.json")
        name = f"{controller.kind} of {source}" if card else controller.kind
        warnings.warn(
            f"{name} was trained on {captured} traces and serves {dtype} features: its thresholds were calibrated in {captured}.",
            stacklevel=5,
        )
