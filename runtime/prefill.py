"""The pass that caches a prompt. It is the widest of a request, so it is where memory runs out."""

import warnings
from collections.abc import Sequence

from runtime.adapter import Forward, ModelState
from runtime.device import is_out_of_memory

REFUSED = (
    "no memory for a pass over {} tokens of the prompt ({}): shorten the prompt, free memory, or place the models on more "
    "devices. `draftwright plan` counts what they need."
)


def cache_prompt(state: ModelState, prompt: Sequence[int]) -> Forward:
    """Commit a prompt; its last pass, with logits of its last token. Where one pass finds no memory two follow, once, with a
    warning; their sums may round differently.

    Raises
    ------
    MemoryError
        If a half finds none either.
    """
    half = len(prompt) // 2
    try:
        return _committed(state, prompt)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if not half:
            raise MemoryError(REFUSED.format(1, error)) from error
        warnings.warn(f"no memory for {len(prompt)} tokens at once ({error}): two passes read the prompt", stacklevel=2)
    state.keep(())
    try:
        _committed(state, prompt[:half])
        return _committed(state, prompt[half:])
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryError(REFUSED.format(len(prompt) - half, error)) from error


def _committed(state: ModelState, tokens: Sequence[int]) -> Forward:
    out = state.forward(tokens, last=1)
    state.keep(range(len(tokens)))
    return out
