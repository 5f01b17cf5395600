"""What replay knows of a drafter: chains at the target's temperature, lookups, and a lookup before a chain."""

from collections.abc import Mapping
from typing import Any

from predictors.config import parse_config
from predictors.controllers import Controller
from predictors.replay.chains import ChainPolicy
from runtime.drafting import DRAFTERS, Drafter
from runtime.drafting.chain import ChainConfig, LookupConfig

REPLAYABLE = ("chain", "lookup")  # kinds


def chain_policy(drafter: Drafter, controller: Controller, verifier: str) -> ChainPolicy | None:
    """The policy of a decoder that drafts so; ``None``: text traces do not cover it."""
    if isinstance(drafter, LookupConfig):
        return ChainPolicy(controller, drafter.depth, verifier, drafter, drafts=False)
    if isinstance(drafter, ChainConfig) and drafter.draft_temperature is None:
        return ChainPolicy(controller, drafter.depth, verifier, drafter.lookup)
    return None


def configured_policy(decoder: Mapping[str, Any], controller: Controller, verifier: str) -> ChainPolicy | None:
    """The same of an expanded configuration of method ``speculative``."""
    options = {"kind": "chain", **(decoder.get("drafter") or {})}
    kind = options.pop("kind")
    if kind not in REPLAYABLE:
        return None
    drafter: Any = parse_config(DRAFTERS[kind], options, "decoder.drafter")
    return chain_policy(drafter, controller, verifier)
