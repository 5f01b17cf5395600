"""Distinct tokens of a law: its most likely ones, or draws one after the other without replacement, in the order of the draws.

A row of as many tokens as are asked for ends with their number, which is smaller where fewer are possible: the host reads both at
once. Shape suffixes: E laws, W tokens of each, V vocabulary.
"""

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.randomness import Chance, Uniform, inverted
from runtime.recorder import Recorder


def most_likely(weights_EV: Tensor, width: int, least: float = -torch.inf) -> Tensor:
    """Rows [E, W + 1] of the ``width`` largest of ``weights_EV`` (W: no more than there are), those above ``least`` counted."""
    best = weights_EV.topk(min(width, weights_EV.shape[1]))
    return torch.cat([best.indices, (best.values > least).sum(1, keepdim=True)], dim=1)


def read_rows(rows_EW: Tensor) -> list[list[int]]:
    """The tokens of rows on the host: one read."""
    return [row[: row[-1]] for row in rows_EW.tolist()]


def without_replacement(probs_EV: Tensor, width: int, randomness: Chance) -> list[list[int]]:
    """Sequential draws of each row without the tokens drawn before, fewer where fewer are possible."""
    supports: list[int] = (probs_EV > 0).sum(1).tolist()
    left_EV = probs_EV.clone()
    drawn: list[list[int]] = [[] for _ in supports]
    for turn in range(width):
        rows = [row for row, support in enumerate(supports) if support > turn]
        if not rows:
            break
        at = on_device(rows, probs_EV.device)
        tokens = randomness.categorical(left_EV[at])
        left_EV[at, tokens] = 0
        for row, token in zip(rows, tokens.tolist(), strict=True):
            drawn[row].append(token)
    return drawn


class DistinctProgram:
    """Rows of ``width`` tokens for one number of laws: the ``likeliest`` most likely ones, then draws without replacement. Draws
    use as many numbers as `without_replacement` where so many tokens are possible."""

    def __init__(self, recorder: Recorder, probs_EV: Tensor, width: int, likeliest: int) -> None:
        self._width, self._likeliest = width, likeliest
        self._probs_EV = torch.ones_like(probs_EV)
        shape = (width - likeliest, len(probs_EV), 1)
        self._uniform = torch.zeros(shape, dtype=torch.float64, device=probs_EV.device)
        self._run = recorder.record(self._draw)

    def __call__(self, probs_EV: Tensor, chance: Uniform) -> Tensor:
        self._probs_EV.copy_(probs_EV)
        for uniform in self._uniform:  # one turn after the other, as `without_replacement` does
            chance.fill(uniform)
        return self._run().clone()

    def _draw(self) -> Tensor:
        left_EV, drawn = self._probs_EV.clone(), []
        if self._likeliest:
            drawn.append(left_EV.topk(self._likeliest).indices)
            left_EV.scatter_(1, drawn[0], 0.0)
        for uniform in self._uniform.unbind():
            drawn.append(inverted(left_EV, uniform).unsqueeze(1))
            left_EV.scatter_(1, drawn[-1], 0.0)
        number_E1 = (self._probs_EV > 0).sum(1, keepdim=True).clamp(max=self._width)
        return torch.cat([*drawn, number_E1], dim=1)


def distinct(probs_EV: Tensor, width: int, likeliest: int, randomness: Chance) -> Tensor:
    """What a `DistinctProgram` gives, by plain calls and where nothing is drawn from laws without mass."""
    top = read_rows(most_likely(probs_EV, likeliest, 0.0)) if likeliest else [[] for _ in probs_EV]
    left_EV = probs_EV.clone()
    for row, tokens in enumerate(top):
        left_EV[row, tokens] = 0.0
    rest = without_replacement(left_EV, width - likeliest, randomness)
    rows = [[*first, *then] for first, then in zip(top, rest, strict=True)]
    padded = [[*row, *[0] * (width - len(row)), len(row)] for row in rows]
    return on_device(torch.tensor(padded), probs_EV.device)
