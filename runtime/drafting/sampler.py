"""Sampling from a draft: logits to distributions, and these to tokens, by plain calls or programs graphed once per shape.

Distinct tokens of a distribution are its most likely ones, then draws one after the other without replacement, in draw order.
A row of as many tokens as are asked for ends with their number, which is smaller where fewer are possible: the host reads both
at once. Shape suffixes: ... any rows, E distributions, W tokens of each, V vocabulary.
"""

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.device import on_device
from runtime.graphs import GraphMaker, Programs
from runtime.laws import processed_law
from runtime.randomness import Chance, Uniform, inverted


def most_likely(weights_EV: Tensor, width: int, least: float = -torch.inf) -> Tensor:
    """Take rows [E, W + 1] of the ``width`` largest of ``weights_EV`` (W: at most all), ending with how many exceed ``least``."""
    best = weights_EV.topk(min(width, weights_EV.shape[1]))
    return torch.cat([best.indices, (best.values > least).sum(1, keepdim=True)], dim=1)


def read_rows(rows_EW: Tensor) -> list[list[int]]:
    """Read the tokens of rows on the host, at once."""
    return [row[: row[-1]] for row in rows_EW.tolist()]


def distinct(probs_EV: Tensor, width: int, likeliest: int, chance: Chance) -> list[list[int]]:
    """Draw ``width`` tokens of each row, fewer where fewer are possible: the ``likeliest`` most likely ones, then sequential
    draws. Nothing is drawn from rows without mass."""
    drawn = read_rows(most_likely(probs_EV, likeliest, 0.0)) if likeliest else [[] for _ in probs_EV]
    left_EV = probs_EV.clone()
    for row, tokens in enumerate(drawn):
        left_EV[row, tokens] = 0.0
    supports: list[int] = (left_EV > 0).sum(1).tolist()
    for turn in range(width - likeliest):
        rows = [row for row, support in enumerate(supports) if support > turn]
        if not rows:
            break
        at = on_device(rows, probs_EV.device)
        tokens_E = chance.categorical(left_EV[at])
        left_EV[at, tokens_E] = 0
        for row, token in zip(rows, tokens_E.tolist(), strict=True):
            drawn[row].append(token)
    return drawn


class PlainSampler:
    """Samples by one operation after the other: first a distribution, then, if at all, a token of it."""

    reads = True  # whether tokens may be looked at on the host while a round is drafted, as that waits for no device

    def __init__(self, settings: SamplingSettings, chance: Chance) -> None:
        self._settings = settings
        self._chance = chance

    def law(self, logits: Tensor) -> Tensor:
        """Turn logits [..., V] into processed distributions [..., V]."""
        return processed_law(logits, self._settings)

    def token(self, probs: Tensor) -> Tensor:
        """Draw a token [...] of each row of ``probs`` [..., V]."""
        return probs.argmax(dim=-1) if self._settings.greedy else self._chance.categorical(probs)

    def distinct(self, probs_EV: Tensor, width: int, likeliest: int = 0) -> Tensor:
        """Draw rows [E, width + 1] of distinct tokens of ``probs_EV``, the ``likeliest`` most likely ones first."""
        rows = distinct(probs_EV, width, likeliest, self._chance)
        padded = [[*row, *[0] * (width - len(row)), len(row)] for row in rows]
        return on_device(torch.tensor(padded), probs_EV.device)


class GraphedSampler(PlainSampler):
    """Samples by graphed programs: a token's reads the last distribution. Same ``chance``, same tokens as `PlainSampler`."""

    reads = False
    _chance: Uniform

    def __init__(self, settings: SamplingSettings, chance: Uniform, programs: Programs) -> None:
        super().__init__(settings, chance)
        self._programs = programs
        self._last: tuple[Tensor, SamplingProgram] | None = None

    def law(self, logits: Tensor) -> Tensor:
        key = ("sample", self._settings, logits.shape, logits.dtype)
        program = self._programs.get(key, lambda maker: SamplingProgram(maker, logits, self._settings))
        probs = program.law(logits)
        self._last = probs, program
        return probs

    def token(self, probs: Tensor) -> Tensor:
        if self._last is None or self._last[0] is not probs:
            return super().token(probs)
        return self._last[1].token(self._chance)

    def distinct(self, probs_EV: Tensor, width: int, likeliest: int = 0) -> Tensor:
        width = min(width, probs_EV.shape[1])
        likeliest = min(likeliest, width)
        key = ("distinct", probs_EV.shape, probs_EV.dtype, width, likeliest)
        program = self._programs.get(key, lambda maker: DistinctProgram(maker, probs_EV, width, likeliest))
        return program(probs_EV, self._chance)


class SamplingProgram:
    """Program for one shape of logits under one setting: the distribution of what was filled in last, and a token of it. The
    distribution has memory of its own, as other programs (a controller's model) may run before its token is drawn."""

    def __init__(self, maker: GraphMaker, logits: Tensor, settings: SamplingSettings) -> None:
        self._settings = settings
        self._logits = torch.zeros_like(logits)
        self._uniform = torch.zeros((*logits.shape[:-1], 1), dtype=torch.float64, device=logits.device)
        self._probs = processed_law(self._logits, settings)
        self._run_law = maker.make(self._law)
        self._run_token = maker.make(self._token)

    def law(self, logits: Tensor) -> Tensor:
        self._logits.copy_(logits)
        return self._run_law().clone()

    def token(self, chance: Uniform) -> Tensor:
        if not self._settings.greedy:
            chance.fill(self._uniform)
        return self._run_token().clone()

    def _law(self) -> Tensor:
        return self._probs.copy_(processed_law(self._logits, self._settings))

    def _token(self) -> Tensor:
        return self._probs.argmax(dim=-1) if self._settings.greedy else inverted(self._probs, self._uniform)


class DistinctProgram:
    """Program for rows of ``width`` tokens, of one number of distributions: the ``likeliest`` most likely ones, then draws
    without replacement. Draws use as many numbers as `distinct` where so many tokens are possible."""

    def __init__(self, maker: GraphMaker, probs_EV: Tensor, width: int, likeliest: int) -> None:
        self._width, self._likeliest = width, likeliest
        self._probs_EV = torch.ones_like(probs_EV)
        shape = (width - likeliest, len(probs_EV), 1)
        self._uniform = torch.zeros(shape, dtype=torch.float64, device=probs_EV.device)
        self._run = maker.make(self._draw)

    def __call__(self, probs_EV: Tensor, chance: Uniform) -> Tensor:
        self._probs_EV.copy_(probs_EV)
        for uniform in self._uniform:  # one turn after the other, as `distinct` does
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


def sampler_for(settings: SamplingSettings, chance: Chance, programs: Programs | None) -> PlainSampler:
    """Return a graphed sampler where the model's passes are graphed and ``chance`` allows it, else a plain one. Plain over
    graphed passes, it leaves tokens unread, too: what is drafted does not depend on where draws come from."""
    if programs is not None and isinstance(chance, Uniform):
        return GraphedSampler(settings, chance, programs)
    plain = PlainSampler(settings, chance)
    if programs is not None:
        plain.reads = False
    return plain
