"""Which decoders can be led along a text, and how their verifier weighs a drafted prefix."""

from collections.abc import Collection

from predictors.sampling import SamplingSettings
from runtime.decoding.base import Decoder
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.routed import RoutedDecoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.decoding.single_model import SingleModelDecoder
from runtime.drafting.chain import ChainConfig
from runtime.drafting.lookup import LookupConfig
from runtime.verification import VERIFIERS
from runtime.verification.chain import block, tokenwise
from runtime.verification.recorded import Rule

LED_RULES: set[Rule] = {tokenwise, block}  # hsd is block
LED_LOOKUP_RULES = {*LED_RULES, VERIFIERS["match"].rule}  # on one-hot drafts it is tokenwise


def why_not_led(decoder: Decoder, settings: SamplingSettings | None = None) -> str | None:
    """The reason why ``decoder`` cannot be led along a text, ``None`` where it can be.

    At ``settings`` of temperature 0 every lossless decoder emits the target's one text, and nothing needs leading.
    """
    if isinstance(decoder, RoutedDecoder):
        routes = [route for _, route in decoder.routes] if settings is None else [decoder.route(settings)]
        return next((reason for route in routes if (reason := why_not_led(route, settings))), None)
    if decoder.lossy:
        return "it is lossy: a text of the target is not a text of its own"
    if settings is not None and settings.greedy:
        return None
    return _why_not_led_when_sampling(decoder)


def _why_not_led_when_sampling(decoder: Decoder) -> str | None:
    if isinstance(decoder, BranchParallelDecoder):
        return "it is branch-parallel: what it drafts concurrently with the target is not enumerated given a text yet"
    if isinstance(decoder, SingleModelDecoder):
        return "it drafts for itself: what it guesses depends on earlier passes, not on a draft model's distributions"
    if type(decoder) is not SequentialDecoder:
        return f"{type(decoder).__name__} is not a loop that leading knows"
    if decoder.drafter is None:
        return None
    rules: Collection[object] = LED_LOOKUP_RULES
    if not isinstance(decoder.drafter, LookupConfig):
        if not isinstance(decoder.drafter, ChainConfig):
            return f"its drafter {decoder.drafter} draws trees, and only chains are enumerated given a text"
        if decoder.drafter.draft_temperature == 0:
            return "its draft_temperature is 0: the model's tokens are not drawn, and cannot be led"
        rules = LED_RULES
    if decoder.verifier.rule not in rules:
        return f"verifier {decoder.verifier.name!r} is not enumerated given a text; tokenwise, block and hsd are"
    return None
