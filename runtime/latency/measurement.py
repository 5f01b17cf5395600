"""All cells of a latency profile, and the parameters that say which."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch

from predictors.config import Checked, Count, Whole, ascending, at_least, not_empty, one_of
from runtime.latency.beside import open_beside
from runtime.latency.cells import Cell
from runtime.latency.decision import LEAST_FEATURES, decision_cells, guessing_cells
from runtime.latency.passes import CONTINUATION, CommittedState, begin_round, pass_cells, prefill_cells, reference_cells
from runtime.latency.rounds import branch_cells, plain_cells, round_cells
from runtime.latency.weightless import weightless_pair
from runtime.pair import ModelPair
from runtime.tree import DraftLaw
from runtime.verification.acceptance import NODE_SOLVERS

LEAST_PREPARED_ROWS = 64  # so that rounds differ
# What the others are compared with: a pass of one, plain decoding.
STARTS = {"draft_rows": 1, "target_tokens": 1, "drafted": 0}
# Compared with the same passes of another table.
SUBSETS = {
    "reference_rows": "draft_rows",
    "reference_tokens": "target_tokens",
    "beside_rows": "draft_rows",
    "beside_tokens": "target_tokens",
}

# Node by node, for i.i.d. draws.
NODE_RULES = tuple(rule for rule, (_, laws) in NODE_SOLVERS.items() if DraftLaw.IID in laws)
Grid = Annotated[tuple[Count, ...], not_empty, ascending]


@dataclass(frozen=True)
class LatencyConfig(Checked):
    """Section ``latency``: the grid of every table, ascending, and how often its cells are called (`runtime.latency.cells`).

    ``draft_rows`` and ``target_tokens`` start at 1, chains ``drafted`` at 0 (plain decoding). The passes of ``reference_rows``
    and ``reference_tokens`` are also timed over bare Hugging Face, those of ``beside_rows`` and ``beside_tokens`` with the other
    model at work in another process; empty: no such table. Trees are ``tree_paths`` rollouts and have ``tree_nodes`` nodes,
    multiples of it; besides traversal, ``tree_rules`` verify them. ``branch_rows`` are candidates at a branch point and the
    branches behind them, ``guessed`` the tokens that a model drafting for itself feeds. Contexts and prompts are cut to what the
    models can hold. Cells that are unsound after all ``visits`` are measured again, ``repairs`` times at most.
    """

    draft_rows: Grid = (1, 2, 3, 4, 6, 8)
    target_tokens: Grid = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)
    reference_rows: tuple[int, ...] = (1, 4)
    reference_tokens: tuple[int, ...] = (1, 9)
    beside_rows: tuple[int, ...] = (1, 2, 6)
    beside_tokens: tuple[int, ...] = (1, 2, 9, 33)
    contexts: Grid = (32, 128, 512)
    prefill_tokens: Grid = (16, 64, 128, 256)
    drafted: Annotated[tuple[Whole, ...], not_empty, ascending] = (0, 1, 2, 4, 8)
    tree_paths: Count = 3
    tree_nodes: Grid = (3, 6, 9, 12)
    tree_rules: tuple[Annotated[str, one_of(*NODE_RULES)], ...] = ("nss", "naive_tree", "spectr", "specinfer", "khisti")
    branch_rows: Grid = (1, 2, 6)
    guessed: Grid = (2, 8, 32)
    features: Annotated[tuple[Annotated[int, at_least(LEAST_FEATURES)], ...], not_empty, ascending] = (
        64,
        512,
        2048,
        8192,
    )
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


@contextmanager
def open_cells(pair: ModelPair, config: LatencyConfig) -> Iterator[tuple[list[Cell], list[str]]]:
    """All cells, and notes on what the models' limits cut off. Leaving the block ends the processes that some are timed with.

    Of a pair without a draft there are the target's passes, verification and self-drafting. Before a pass, the target runs where
    a draft would: its caches then are as its own last pass left them.

    Raises
    ------
    ValueError
        If the models' context is too short for the widest pass or a prompt, or their vocabulary too small for the trees.
    """
    target, draft = pair.target, pair.target if pair.draft is None else pair.draft
    generator = torch.Generator().manual_seed(config.seed)
    device = target.device
    room = min(target.context_limit - max(config.target_tokens), draft.context_limit - max(config.draft_rows))
    contexts, notes = cut("contexts", config.contexts, room)
    longest = min(target.context_limit, draft.context_limit) - CONTINUATION
    prompts, more_notes = cut("prefill_tokens", config.prefill_tokens, longest)
    most_nodes = max(*config.drafted, *config.tree_nodes, *config.branch_rows)
    prepared = weightless_pair(pair, max(LEAST_PREPARED_ROWS, 2 * most_nodes), generator)
    evict = partial(CommittedState(target, contexts[0], 1, generator).chain, 1)
    started = [CommittedState(model, contexts[0], 1, generator) for model in (target, draft)]
    begin, step = partial(begin_round, *started), partial(started[1].level, 1)
    submitted = config.drafted[0], config.drafted[-1]
    at_once = config.beside_tokens, config.beside_rows, contexts, submitted, config.seed, evict
    with open_beside(pair, *at_once) as beside:
        cells = [
            *pass_cells(target, draft, config.target_tokens, config.draft_rows, contexts, generator),
            *reference_cells(target, draft, config.reference_tokens, config.reference_rows, contexts, generator),
            *plain_cells(pair, contexts[len(contexts) // 2], generator),
            *prefill_cells(target, draft, prompts, generator),
            *round_cells(
                prepared, config.drafted, config.tree_paths, config.tree_nodes, config.tree_rules, config.seed, evict
            ),
            *guessing_cells(config.guessed, target.vocabulary_size, device, generator, evict),
        ]
        if pair.draft is None:
            cells = [cell for cell in cells if not cell.tables[0].startswith("draft")]
        else:
            cells += [
                *branch_cells(prepared, config.branch_rows, config.seed, evict),
                *beside,
                *decision_cells(pair, config.features, device, generator, evict, begin, step),
            ]
        yield cells, notes + more_notes


def cut(name: str, grid: Sequence[int], longest: int) -> tuple[list[int], list[str]]:
    """``grid`` with what exceeds ``longest`` replaced by it, and a note if anything did."""
    if longest < 1:
        raise ValueError(
            f"the models' context is {1 - longest} tokens too short for the grid. "
            "Shorten latency.target_tokens and latency.draft_rows."
        )
    kept = sorted({min(value, longest) for value in grid})
    too_long = [value for value in grid if value > longest]
    return kept, [f"{name} {too_long} are cut to {longest}: the models hold no more"] if too_long else []
