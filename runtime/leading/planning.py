"""Plan a decode along a text: run the real decoder once, with every choice drawn given the text, and keep them as a tape."""

from collections.abc import Collection
from copy import copy

from predictors.sampling import SamplingSettings
from runtime.decoding.base import Decoder, Generation
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.decoding.single_model import SingleModelDecoder
from runtime.drafting.chain import ChainConfig, LookupConfig
from runtime.leading.leader import Leader
from runtime.leading.luck import Luck, luck_of, seeded_uniforms
from runtime.leading.tape import Tape
from runtime.leading.text import GivenText, StandIn
from runtime.verification import VERIFIERS
from runtime.verification.chain import block, tokenwise
from runtime.verification.outcome import Rule

LED_RULES: set[Rule] = {tokenwise, block}  # hsd is block
LED_LOOKUP_RULES = {*LED_RULES, VERIFIERS["match"].rule}  # on one-hot drafts it is tokenwise


def plan(decoder: Decoder, text: GivenText, seed: int, tails: bool = True) -> Tape:
    """The choices of ``decoder`` along ``text``, drawn from its own distribution given the text.

    Takes the drafting of a decode, and under block verification one pass of the target for every token that is drafted after the
    first one beside the text; where passes are recorded or hidden states are read, all of a decode.

    Parameters
    ----------
    seed
        Of the uniform numbers: a text's decoders share them by position in the text (`runtime.leading.luck`).
    tails
        Draw those later tokens given the text, too. ``False`` saves the passes and shares the draft's among a text's plans. It is
        exact where no decision depends on them: for controllers that look at no draft, as long as no end-of-sequence token is
        drafted there; not for recorded chance, as a verdict may then have no number.

    Raises
    ------
    ValueError
        If the decoder cannot be led (`why_not_led`), or the text was recorded with other probabilities.
    """
    if reason := why_not_led(decoder, text.settings):
        raise ValueError(
            f"{type(decoder).__name__} cannot be led along a text: {reason}. Let it decode a text of its own."
        )
    if text.settings.greedy:
        return Tape(text.tokens, seed, rounds=None)
    tape, generation = led(decoder, text, seed, luck_of(seeded_uniforms(seed)), tails)
    assert tape.followed(generation), "every token of a led decode is the text's"
    return tape


def led(decoder: Decoder, text: GivenText, seed: int, luck: Luck, tails: bool) -> tuple[Tape, Generation]:
    """The tape that ``luck`` gives, and the decode that it was taken from."""
    chosen = decoder.route(text.settings)
    assert isinstance(chosen, SequentialDecoder), "why_not_led let it pass"
    leader = Leader(text, chosen.verifier.rule is block, luck, tails)
    generation = _over_text(chosen, text, tails).generate(list(text.prompt), randomness=leader, **text.options)
    return Tape(text.tokens, seed, tuple(leader.rounds), leader.first_uniform), generation


def _over_text(decoder: SequentialDecoder, text: GivenText, tails: bool) -> SequentialDecoder:
    """``decoder`` with stand-ins for what is known of ``text``: for the target, whose verdict follows from the text, and without
    ``tails`` for the draft, whose numbers no decision depends on then. Not for models whose hidden states are read,
    nor where passes are recorded: verdicts have numbers there."""
    pair, reads = copy(decoder.pair), decoder.controller
    if pair.target.programs is not None or pair.target is not text.target:
        return decoder
    if not (reads.layers or reads.reads_views):
        pair.target = StandIn(text.logits(text.target), silent=True)
    if not (tails or pair.draft is None or reads.draft_layers or reads.reads_views):
        pair.draft = StandIn(text.logits(pair.draft), silent=False)
    made = copy(decoder)
    made.pair = pair
    return made


def why_not_led(decoder: Decoder, settings: SamplingSettings) -> str | None:
    """The reason why ``decoder`` cannot be led along a text sampled by ``settings``, ``None`` where it can be.

    At temperature 0 every lossless decoder emits the target's one text, and nothing needs leading.
    """
    decoder = decoder.route(settings)
    if decoder.lossy:
        return "it is lossy: a text of the target is not a text of its own"
    if settings.greedy:
        return None
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
