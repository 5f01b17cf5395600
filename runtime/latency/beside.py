"""Cells of both models at work at once, each with its share of the threads, as branch-parallel decoding runs them on CPUs.

    beside_target  tokens, context   a pass of the target, while the draft in its own process takes one step after the other
    beside_draft   rows, context     a step of the draft in that process, while the target here makes one pass after the other
    exchange       submitted         a round's messages: from the verdict's sending until both answers are read, without what the
                                     calls take; the first answer holds a block of as many tokens and their laws

The other side really is at work: it goes on until a deadline (one clock serves all processes of a machine), and a call counts
only if that work began before what is timed began, and ended after it ended. Else it is repeated with a later deadline.
Later calls of the cell keep that window as long as it is no more than `SLACK` times what a call needs: one that ends just behind
the typical pass would leave out the slow ones, and one left over from a stall of the machine would waste time.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep

import torch

from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import Root
from runtime.adapter import LanguageModel
from runtime.branching.exchange import NO_BRANCHES, Branches, Pending, Verdict
from runtime.branching.host import slot_bytes
from runtime.compact.state import Sent
from runtime.latency.cells import Cell
from runtime.latency.grid import LatencyConfig
from runtime.latency.passes import CommittedState, Passes
from runtime.overlap.executor import Executor, default_threads, torch_threads
from runtime.overlap.process import DraftProcess
from runtime.pair import ModelPair
from runtime.tree import EMPTY_TREE, chain_tree

FIRST_WINDOW = 0.008  # seconds until the first deadline
GROWTH = 1.5  # of the window, where it was too short
LEAD = 0.1  # of the window, for the other process to begin
LEAST_STEPS = 4  # timed in a call of a draft's cell
SLACK = 3.0  # deadlines that are kept, in what a call needs

Stamps = list[tuple[float, float]]  # when each piece of work began and ended


class DraftSide:
    """What the draft's process holds: states behind the ``contexts`` of ``config``, and blocks of `submitted` tokens."""

    def __init__(self, model: LanguageModel, config: LatencyConfig, vocabulary_size: int) -> None:
        generator, most_rows = torch.Generator().manual_seed(config.seed), max((1, *config.beside_rows))
        self._states = {context: CommittedState(model, context, most_rows, generator) for context in config.contexts}
        laws = partial(torch.ones, dtype=torch.promote_types(model.dtype, torch.float32))
        self._blocks = {
            count: Pending(chain_tree(torch.arange(count), laws(count + 1, vocabulary_size)) if count else EMPTY_TREE)
            for count in submitted(config)
        }

    def steps(self, context: int, rows: int, deadline: float) -> Stamps:
        """Steps of ``rows`` until ``deadline``."""
        state, stamps = self._states[context], []
        while perf_counter() < deadline:
            start = perf_counter()
            state.level(rows)
            stamps.append((start, perf_counter()))
        return stamps

    def advance(self, verdict: Verdict, root: Root, submitted: int) -> Pending:
        return self._blocks[submitted]

    def branch(self) -> Branches:
        return NO_BRANCHES


# Seconds of some work, and of the window that it needed; None: the other side's was too short.
Timed = tuple[float, float] | None


@dataclass
class Beside:
    """Work while the other side is at work, too: ``timed`` does it within so many seconds. ``window``: of the next call."""

    timed: Callable[[float], Timed]
    threads: int
    window: float = FIRST_WINDOW

    def measure(self) -> tuple[float]:
        """Seconds of a pass or a step."""
        with torch_threads(self.threads):
            while (timed := self.timed(self.window)) is None:
                self.window *= GROWTH
        seconds, needed = timed
        self.window = max(FIRST_WINDOW, min(self.window, SLACK * needed))
        return (seconds,)


def target_beside(target: Passes, draft: Executor, count: int, context: int, window: float) -> Timed:
    """A pass of the target over ``count`` tokens."""
    asked = perf_counter()
    draft.submit("steps", context, 1, asked + window)
    sleep(LEAD * window)
    start = perf_counter()
    target.chain(count)
    end = perf_counter()
    work = draft.result()
    return (end - start, end - asked) if work.started <= start and end <= work.ended else None


def draft_beside(target: Passes, draft: Executor, count: int, context: int, window: float) -> Timed:
    """The draft's steps of ``count`` rows: the mean of those that fell within the target's work, but for the first of them."""
    deadline = perf_counter() + window
    draft.submit("steps", context, count, deadline)
    start = perf_counter()
    while perf_counter() < deadline:
        target.chain(1)
    end = perf_counter()
    stamps: Stamps = draft.result().value
    steps = [after - before for before, after in stamps if start <= before and after <= end][1:]
    if len(steps) < LEAST_STEPS:
        return None
    mean = sum(steps) / len(steps)
    return mean, (LEAST_STEPS + 2) * mean


def exchange(draft: Executor, threads: int, submitted: int) -> tuple[float]:
    """Seconds of a round's messages to the ``draft`` and back, with a block of ``submitted`` tokens."""
    root = Root(1, max(1, submitted), SamplingSettings(), RoundRecord())
    with torch_threads(threads):
        start = perf_counter()
        draft.submit("advance", Verdict((), 0), root, submitted)
        draft.submit("branch")
        replies = draft.result(), draft.result()
        seconds = perf_counter() - start
    return (seconds - sum(reply.ended - reply.started for reply in replies),)


def submitted(config: LatencyConfig) -> tuple[int, int]:
    """Tokens of the blocks that are exchanged: of the shortest chain and of the longest."""
    return config.drafted[0], config.drafted[-1]


@contextmanager
def open_beside(pair: ModelPair, config: LatencyConfig, before: Callable[[], None]) -> Iterator[list[Cell]]:
    """Cells of the three tables: none of a table whose grid is empty, none at all if both models' are, or where there is no draft
    process. ``before`` comes before an exchange. Leaving the block ends the process."""
    tokens, rows, contexts = config.beside_tokens, config.beside_rows, config.contexts
    draft_model, devices = pair.draft, {model.device.type for model in (pair.target, pair.draft) if model is not None}
    if draft_model is None or not (tokens or rows) or devices != {"cpu"} or sys.platform == "win32":
        yield []
        return
    vocabulary_size, lengths = pair.target.vocabulary_size, submitted(config)
    target_threads, draft_threads = default_threads(torch.get_num_threads())
    side = (Sent(draft_model), config, vocabulary_size)
    draft = DraftProcess(DraftSide, side, draft_threads, slot_bytes(draft_model, vocabulary_size, max(lengths)))
    try:
        generator = torch.Generator().manual_seed(config.seed)
        cells = []
        for context in contexts:
            passes = CommittedState(pair.target, context, max((1, *tokens)), generator)
            for work, table, axis, counts in (
                (target_beside, "beside_target", "tokens", tokens),
                (draft_beside, "beside_draft", "rows", rows),
            ):
                for count in counts:
                    beside = Beside(partial(work, passes, draft, count, context), target_threads)
                    cells.append(Cell((table,), {axis: count, "context": context}, beside.measure))
        for count in lengths:
            at = {"submitted": count}
            cells.append(Cell(("exchange",), at, partial(exchange, draft, target_threads, count), before))
        yield cells
    finally:
        draft.close()
