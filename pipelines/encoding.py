"""What a tokenizer makes of a prompt's text."""

from typing import Any


def encoded(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before every text, such as a token that begins one, and the ``text``'s own tokens. What it puts
    after one, as ``</s>`` or ``[SEP]``, would end the prompt and is left out."""
    own = _tokens(tokenizer, text, False)
    probe = own or _tokens(tokenizer, "a", False)
    whole = _tokens(tokenizer, text if own else "a", True)
    starts = (place for place in range(len(whole)) if whole[place : place + len(probe)] == probe)
    return whole[: next(starts, 0)], own


def _tokens(tokenizer: Any, text: str, special: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
