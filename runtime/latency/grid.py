"""Which cells a latency profile has; `runtime.latency.cells` measures them."""

from dataclasses import dataclass
from typing import Annotated

from predictors.config import Checked, Count, Whole, ascending, at_least, not_empty, one_of
from predictors.features import FEATURE_SETS
from runtime.tree import DraftLaw
from runtime.verification.acceptance import NODE_SOLVERS

TAPPED = 4  # hidden states of the target that a head reads, the embedding beside them
LEAST_FEATURES = len(FEATURE_SETS["extended"]) + TAPPED + 1  # of a head, each state being one number
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
Features = Annotated[tuple[Annotated[int, at_least(LEAST_FEATURES)], ...], not_empty, ascending]


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
