"""Decoders from configurations and from exported bundles."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictors.bundle import read_bundle
from predictors.config import parse_config
from predictors.contract import require_same_identity
from predictors.controllers import CONTROLLERS, Controller, build_controller
from runtime.decoding.base import Decoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.decoding.target_roots import TargetRootsDecoder
from runtime.drafting import DRAFTERS, Drafter
from runtime.drafting.multi_candidate import MultiCandidateConfig
from runtime.identity import pair_identity
from runtime.pair import ModelPair
from runtime.verification import LOSSY_VERIFIERS, VERIFIERS, Verifier


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder's configuration; see `build_decoder`."""

    method: str
    drafter: dict | None = None
    verifier: str = "block"
    controller: dict | None = None
    lossy: bool = False


def build_decoder(pair: ModelPair, config: Mapping[str, Any]) -> Decoder:
    """Build a decoder.

    Parameters
    ----------
    pair
        The models.
    config
        ``method``: ``autoregressive`` (the target alone) or ``speculative`` with ``drafter``, ``verifier`` (of `VERIFIERS`) and
        ``controller`` (``{"kind": "entropy"}``; default ``fixed``). Drafters: ``{"kind": "chain", "gamma": 5}``,
        ``{"kind": "delayed_tree", "k": 3, "l1": 1, "l2": 3}``, ``{"kind": "multi_candidate", "config": [4, 2, 2, 1]}`` and
        ``{"kind": "fork", "width": 4, "depth": 3}``. ``lossy=True`` admits combinations that change the output's law and marks
        what they generate.

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
    parsed = parse_config(DecoderConfig, config, "decoder")
    controller = build_controller(parsed.controller or {"kind": "fixed"})
    return _assemble(pair, parsed, controller)


def load_decoder(bundle: str | Path, pair: ModelPair) -> Decoder:
    """The decoder an exported bundle describes, after checking that the bundle was made for ``pair``.

    Raises
    ------
    ContractError
        If the bundle was made for another pair or other features: names the field, both values and the remedy.
    """
    loaded = read_bundle(bundle)
    kind = loaded.card["kind"]
    if kind not in CONTROLLERS:
        raise ValueError(f"{bundle}: unknown controller kind {kind!r}. Update draftwright, or export the bundle again.")
    parsed = parse_config(DecoderConfig, loaded.card["decoder"], f"{bundle}: card.json: decoder")
    return _assemble(pair, parsed, CONTROLLERS[kind].from_bundle(loaded))


def _assemble(pair: ModelPair, config: DecoderConfig, controller: Controller) -> Decoder:
    verifier = _verifier(config.verifier, config.lossy)
    if config.method == "autoregressive":
        if config.drafter or config.controller:
            raise ValueError(
                "decoder: method 'autoregressive' takes neither drafter nor controller; use 'speculative'."
            )
        return SequentialDecoder(pair, None, verifier, controller)
    if config.method != "speculative":
        raise ValueError(f"decoder: unknown method {config.method!r}. Known methods: autoregressive, speculative.")
    if pair.draft is None:
        raise ValueError("decoder: method 'speculative' needs a draft model; this pair has none.")
    drafter = _drafter(config.drafter)
    if controller.gamma is not None and drafter.depth < controller.gamma:
        raise ValueError(
            f"decoder.drafter: gamma={drafter.depth} is shorter than the {controller.gamma} tokens the {controller.kind} "
            f"controller decides about. Use gamma >= {controller.gamma}."
        )
    _check_contract(controller, pair)
    if isinstance(drafter, MultiCandidateConfig) and drafter.target_roots > 1:
        return TargetRootsDecoder(pair, drafter, verifier, controller, config.lossy)
    return SequentialDecoder(pair, drafter, verifier, controller, config.lossy)


def _drafter(config: Mapping[str, Any] | None) -> Drafter:
    options = dict(config or {"kind": "chain"})
    kind = options.pop("kind", None)
    if kind not in DRAFTERS:
        raise ValueError(f"decoder.drafter: unknown kind {kind!r}. Known kinds: {', '.join(DRAFTERS)}.")
    return parse_config(DRAFTERS[kind], options, "decoder.drafter")


def _verifier(name: str, lossy: bool) -> Verifier:
    known = VERIFIERS | LOSSY_VERIFIERS if lossy else VERIFIERS
    if name in known:
        return known[name]
    if name in LOSSY_VERIFIERS:
        raise ValueError(f"decoder: verifier {name!r} is lossy; say lossy=True to compare with it anyway.")
    raise ValueError(f"decoder: unknown verifier {name!r}. Known verifiers: {', '.join(known)}.")


def _check_contract(controller: Controller, pair: ModelPair) -> None:
    contract = controller.contract
    if contract is None:
        return
    require_same_identity(
        contract.identity,
        pair_identity(pair, controller.layers),
        f"{controller.kind} controller",
        "Load the pair it was trained for, or retrain it for this one (dvc repro).",
    )
    dtype = str(getattr(pair.target, "dtype", "")).removeprefix("torch.")
    if dtype != contract.serving_range.dtype:
        warnings.warn(
            f"{controller.kind} was trained on {contract.serving_range.dtype} features and serves {dtype} ones.",
            stacklevel=4,
        )
