"""Decoding led along a given text: all arms emit the same tokens, and their rounds follow the decoder's own distribution.

    text ~ target,  rounds ~ P(rounds | text)        has the joint distribution of the real decoder's (text, rounds)

A round starts after the text's first tokens, and the decoder's own choices are made as they would have been made there, had
they led to this text (`runtime.leading.leader` has the formulas, docs/leading.md their derivation):

    text = GivenText.of(pair, prompt, tokens, settings, budget)     one pass of the target: its distributions along the text
    tape = plan(decoder, text, seed)                         the real decoder, drawing each choice given the text; untimed
    decoder.generate(text.prompt, randomness=tape.chance(), **text.options)       the same decode, read off the tape; timed

`why_not_led` names what cannot be led: above temperature 0 everything but chains verified tokenwise or by block.
"""

from runtime.leading.tape import OffTapeError, Tape, plan, why_not_led
from runtime.leading.text import GivenText

__all__ = ["GivenText", "OffTapeError", "Tape", "plan", "why_not_led"]
