"""Cells of plain decoding as it runs: what the sum of its other cells is held against.

    plain    context    a token of the target alone, greedy, by the real decoder behind ``context`` tokens and a few more

A call is some tokens in a row: in plain decoding a pass follows a pass, and the caches are as the last one left them. The first
token after other cells' work is untimed.
"""

from collections.abc import Iterator

from torch import Generator

from runtime.decoding.base import Step
from runtime.latency.cells import Cell, seconds_of
from runtime.latency.passes import random_tokens
from runtime.latency.rounds import chain_decoder
from runtime.pair import ModelPair

TOKENS = 4  # timed in a row
LONGEST = 64  # tokens of a request


class Plain:
    """Plain decoding behind a random prompt of ``context`` tokens, begun anew before it goes more than ``most`` beyond."""

    def __init__(self, pair: ModelPair, context: int, most: int, generator: Generator) -> None:
        self._decoder = chain_decoder(pair, 0)
        self._device = pair.target.device
        self._prompt = random_tokens(pair.target, context, generator)
        self._most = most
        self._left = 0
        self._steps: Iterator[Step] = iter(())
        self.count = min(TOKENS, most - 2)

    def begin(self) -> None:
        """A token, untimed; before it, if the timed ones would not fit, a new request's prefill."""
        if self._left <= self.count:
            self._steps = self._decoder.stream(self._prompt, max_new_tokens=self._most, eos_token_id=[])
            next(self._steps)  # emits the first token
            self._left = self._most - 1
        self._next()

    def measure(self) -> tuple[float]:
        """Seconds a token."""
        return (seconds_of(self._run, self._device) / self.count,)

    def _run(self) -> None:
        for _ in range(self.count):
            self._next()

    def _next(self) -> None:
        next(self._steps)
        self._left -= 1


def plain_cells(pair: ModelPair, context: int, generator: Generator) -> list[Cell]:
    """The cell of table ``plain``; none where the target holds fewer than 3 tokens beyond ``context``."""
    most = min(LONGEST, pair.target.context_limit - context)
    if most < 3:
        return []
    plain = Plain(pair, context, most, generator)
    return [Cell(("plain",), {"context": context}, plain.measure, plain.begin)]
