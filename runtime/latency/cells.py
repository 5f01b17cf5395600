"""Cells of latency tables, their grids, and how they are timed: interleaved, so that a slow moment of the machine meets all
tables alike.

    sweep   every cell of every table once, in a freshly shuffled order
    visit   ``warmup`` untimed calls of one cell, then ``calls`` timed ones
    call    first, untimed, what precedes this work in decoding (before a pass of one model: a pass of the other), so that caches
            are as cold or warm as they are there; then the work, with an accelerator waited for on both sides

A cell of a table is the median and the quartiles of its timed calls of all sweeps. Disturbed cells are swept again, and the new
calls replace the old ones.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch

from predictors.config import Checked, Count, Whole, ascending, at_least, not_empty, one_of
from predictors.head import FEATURE_SETS
from predictors.latency.profile import LatencyTable
from predictors.latency.soundness import Place
from runtime.tree import DraftLaw
from runtime.verification.top_down import NODE_SOLVERS

TAPPED = 4  # hidden states of the target that a head reads, the embedding beside them
LEAST_FEATURES = len(FEATURE_SETS["extended"]) + TAPPED + 1  # of a head, each state being one number
# What the others are compared with: a pass of one, plain decoding.
STARTS = {"draft_rows": 1, "target_tokens": 1, "drafted": 0}
# Compared with the same passes of another table.
SUBSETS = {"reference_rows": "draft_rows", "reference_tokens": "target_tokens"}
# Node by node, for i.i.d. draws.
NODE_RULES = tuple(rule for rule, (_, laws) in NODE_SOLVERS.items() if DraftLaw.IID in laws)
Grid = Annotated[tuple[Count, ...], not_empty, ascending]
Features = Annotated[tuple[Annotated[int, at_least(LEAST_FEATURES)], ...], not_empty, ascending]


@dataclass(frozen=True)
class LatencyConfig(Checked):
    """Section ``latency``: the grid of every table, ascending, and how often its cells are called (`runtime.latency.cells`).

    ``draft_rows`` and ``target_tokens`` start at 1, chains ``drafted`` at 0 (plain decoding). The passes of ``reference_rows``
    and ``reference_tokens`` are also timed over bare Hugging Face; empty: no such table. Trees are ``tree_paths`` rollouts and
    have ``tree_nodes`` nodes, multiples of it; besides traversal, ``tree_rules`` verify them. ``branch_rows`` are candidates at a
    branch point and the branches behind them, ``guessed`` the tokens that a model drafting for itself feeds. Contexts and prompts
    are cut to what the models can hold. Cells that are unsound after all ``visits`` are measured again, ``repairs`` times at
    most.
    """

    draft_rows: Grid = (1, 2, 3, 4, 6, 8)
    target_tokens: Grid = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)
    reference_rows: tuple[int, ...] = (1, 4)
    reference_tokens: tuple[int, ...] = (1, 9)
    contexts: Grid = (32, 128, 512)
    prefill_tokens: Grid = (16, 64, 128, 256)
    drafted: Annotated[tuple[Whole, ...], not_empty, ascending] = (0, 1, 2, 4, 8)
    tree_paths: Count = 3
    tree_nodes: Grid = (3, 12)
    tree_rules: tuple[Annotated[str, one_of(*NODE_RULES)], ...] = ("nss", "naive_tree", "spectr", "specinfer", "khisti")
    branch_rows: Grid = (1, 2, 6)
    guessed: Grid = (2, 16)
    features: Features = (64, 512, 2048, 8192)
    visits: Count = 6
    repairs: Whole = 2
    warmup: Whole = 1
    calls: Count = 8
    threads: Count = 2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, start in STARTS.items():
            grid = getattr(self, name)
            if grid[0] != start or len(grid) < 2:
                raise ValueError(f"{name} must start at {start} and go on, got {list(grid)}.")
        for name, of in SUBSETS.items():
            missing = sorted(set(getattr(self, name)) - set(getattr(self, of)))
            if missing:
                raise ValueError(f"{name} {missing} are none of {of}={list(getattr(self, of))}, to be compared with.")
        odd = [count for count in self.tree_nodes if count % self.tree_paths]
        if odd:
            raise ValueError(f"tree_nodes {odd} are no multiples of tree_paths={self.tree_paths}; give multiples.")


TASKS = Path("/proc/self/task")
NANOSECOND = 1e-9

# table, at (coordinates by axis), seconds; of the whole visit what it lasted, and waited for a processor
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One place, ``at`` its coordinates in axis order, in one or several ``tables``.

    ``before`` is called before every call of ``measure``, which does the work and returns its seconds in each table, and ``end``
    after a visit's last one.
    """

    tables: tuple[str, ...]
    at: Mapping[str, int]
    measure: Callable[[], tuple[float, ...]]
    before: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None

    @classmethod
    def of_work(
        cls, table: str, work: Callable[[], object], device: torch.device, before: Callable[[], None], **at: int
    ) -> "Cell":
        """Make a cell of one ``table``: seconds of ``work``, all of which runs on ``device``."""
        return cls((table,), at, lambda: (seconds_of(work, device),), before)

    @property
    def places(self) -> list[Place]:
        """This cell's places, one for each table."""
        return [Place.of(table, self.at) for table in self.tables]


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of ``work``, all of which runs on ``device``."""
    synchronise(device)
    start = perf_counter()
    work()
    synchronise(device)
    return perf_counter() - start


def synchronise(*devices: torch.device) -> None:
    """Wait until the accelerators among ``devices`` have done all they were given."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def sweep(cells: Sequence[Cell], order: Random, warmup: int, calls: int, visited: Callable[[], object]) -> list[Row]:
    """Visit every cell once in an order drawn from ``order``; ``visited`` is called after each. A row for each cell and table,
    with the ``seconds`` of its timed calls."""
    rows = []
    for cell in order.sample(cells, len(cells)):
        rows += _visit(cell, warmup, calls)
        visited()
    return rows


def tables_of(rows: Iterable[Row]) -> dict[str, LatencyTable]:
    """The latency tables by name, from the rows of all sweeps."""
    tables: dict[str, dict[tuple[int, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    names = {}
    for row in rows:
        names[row["table"]] = list(row["at"])
        tables[row["table"]][tuple(row["at"].values())] += row["seconds"]
    return {table: _table(names[table], cells) for table, cells in tables.items()}


def replaced(rows: Sequence[Row], again: Sequence[Row]) -> list[Row]:
    """``rows`` with those of cells that were swept ``again`` as often in place of their earlier ones."""
    known = {Place.of(row["table"], row["at"]) for row in again}
    return [row for row in rows if Place.of(row["table"], row["at"]) not in known] + list(again)


def share_waited(rows: Iterable[Row]) -> float:
    """Seconds that threads of this process waited for a processor, a second of visits; 0 without visits."""
    visits = [(row["waited"], row["lasted"]) for row in rows]
    waited, lasted = np.sum(visits, axis=0) if visits else (0.0, 1.0)
    return float(waited / lasted)


def seconds_waited(tasks: Path = TASKS) -> float:
    """Seconds that the process's threads were ready to run and did not, summed over them; 0 where the system does not tell.

    Linux counts them (``schedstat``: nanoseconds run, nanoseconds waited, turns). Timings alone need not show them: passes that
    outlast every slice of time are slowed down alike.
    """
    return NANOSECOND * sum(_waited(thread) for thread in tasks.glob("*/schedstat"))


def _waited(thread: Path) -> int:
    try:
        return int(thread.read_text().split()[1])
    except OSError:
        return 0  # it ended meanwhile


def _visit(cell: Cell, warmup: int, calls: int) -> list[Row]:
    seconds = []
    waited, start = seconds_waited(), perf_counter()
    for call in range(-warmup, calls):
        cell.before()
        measured = cell.measure()
        if call >= 0:
            seconds.append(measured)
    cell.end()
    visit = {"waited": max(0.0, seconds_waited() - waited), "lasted": perf_counter() - start}
    by_table = zip(cell.tables, zip(*seconds, strict=True), strict=True)
    return [{"table": table, "at": dict(cell.at), "seconds": list(column), **visit} for table, column in by_table]


def _table(names: list[str], cells: Mapping[tuple[int, ...], list[float]]) -> LatencyTable:
    grids = [sorted(set(values)) for values in zip(*cells, strict=True)]
    calls = {len(seconds) for seconds in cells.values()}
    assert len(calls) == 1, f"cells of one table were timed {sorted(calls)} times"
    seconds = [cells[place] for place in product(*grids)]
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75), axis=1).reshape(3, *map(len, grids))
    return LatencyTable(dict(zip(names, grids, strict=True)), median, low, high, calls.pop())
