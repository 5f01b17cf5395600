"""Random numbers by position: arms that decide the same on one text draw the same, whatever else they drew before.

``(row, slot)`` is the position of a draw: the ``row`` of the text where it is made or where the drafted chain left the text, and
the ``slot`` there. Within one decode every position is drawn at most once, as rounds do not overlap. No call order and no name of
an arm enters.

    KEEP = 0       whether the token drafted at this row is the text's
    1, 2, …        the tokens drafted instead of it and after that
    EXTEND = -1    the target's own token after the end of the text
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from runtime.randomness import inverted

KEEP, EXTEND = 0, -1
Uniforms = Callable[[int, int], float]  # a number in [0, 1) by row and slot
Luck = Callable[[Tensor, int, int], int]  # a draw from unnormalised weights [V] with positive mass, by row and slot


def luck_of(uniforms: Uniforms) -> Luck:
    """Draws that invert the cumulative distribution at ``uniforms``."""

    def draw(weights_V: Tensor, row: int, slot: int) -> int:
        uniform = torch.tensor([uniforms(row, slot)], dtype=torch.float64, device=weights_V.device)
        return int(inverted(weights_V, uniform))

    return draw


def seeded_uniforms(seed: int) -> Uniforms:
    """Independent uniform numbers that follow from ``seed``.

    Examples
    --------
    >>> seeded_uniforms(3)(5, KEEP) == seeded_uniforms(3)(5, KEEP)
    True
    """

    def uniform(row: int, slot: int) -> float:
        key = hashlib.sha256(f"{seed}/{row}/{slot}".encode()).digest()
        return (int.from_bytes(key[:8], "little") >> 11) * 2.0**-53

    return uniform
