"""Plan a decode along a text: run the real decoder once, with every choice drawn given the text, and keep them as a tape."""

from runtime.decoding.base import Decoder, Generation
from runtime.decoding.sequential import SequentialDecoder
from runtime.leading.eligible import why_not_led
from runtime.leading.leader import Leader
from runtime.leading.luck import Luck, Uniforms, luck_of, seeded_uniforms
from runtime.leading.tape import Tape
from runtime.leading.text import GivenText
from runtime.verification.chain import block


def plan(decoder: Decoder, text: GivenText, seed: int, uniforms: Uniforms | None = None, tails: bool = True) -> Tape:
    """The choices of ``decoder`` along ``text``, drawn from its own distribution given the text.

    Takes as long as a decode, and under block verification one pass of the target for every token that is drafted after the
    first one beside the text.

    Parameters
    ----------
    seed
        Of the uniform numbers: a text's decoders share them by position in the text (`runtime.leading.luck`).
    uniforms
        Numbers in [0, 1) by row and slot, in place of the seeded ones.
    tails
        Draw those later tokens given the text, too. ``False`` saves the passes and is exact where no decision depends on them:
        for controllers that look at no draft, as long as no end-of-sequence token is drafted there; not for recorded chance, as
        a verdict may then have no number.

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
    tape, generation = led(decoder, text, seed, luck_of(uniforms or seeded_uniforms(seed)), tails)
    assert tape.followed(generation), "every token of a led decode is the text's"
    return tape


def led(decoder: Decoder, text: GivenText, seed: int, luck: Luck, tails: bool) -> tuple[Tape, Generation]:
    """The tape that ``luck`` gives, and the decode that it was taken from."""
    chosen = decoder.route(text.settings)
    assert isinstance(chosen, SequentialDecoder), "why_not_led let it pass"
    leader = Leader(text, chosen.verifier.rule is block, luck, tails)
    generation = chosen.generate(list(text.prompt), randomness=leader, **text.options)
    return Tape(text.tokens, seed, tuple(leader.rounds), leader.first_uniform), generation
