"""Latency measurement: what passes, drawing, verification and decisions take on this machine.

Passes are measured by width and context (`runtime.latency.passes`), what rounds do outside of them in place, on real rounds
(`runtime.latency.rounds`), decisions by themselves (`runtime.latency.decision`).

All cells of all tables are measured together, interleaved (`runtime.latency.cells`), so that tables can be divided by each other.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from runtime.latency.cells import Cell, LatencyConfig, replaced, share_waited, sweep, tables_of
from runtime.latency.decision import decision_cells
from runtime.latency.passes import CONTINUATION, committed_states, pass_cells, prefill_cells
from runtime.latency.rounds import TimedPair, branch_cells, guessing_cells, plain_cells, round_cells
from runtime.pair import ModelPair

__all__ = ["Cell", "LatencyConfig", "all_cells", "replaced", "share_waited", "sweep", "tables_of"]


def all_cells(pair: ModelPair, config: LatencyConfig) -> tuple[list[Cell], list[str]]:
    """All cells, and notes on what the models' limits cut off.

    Of a pair without a draft there are the target's passes, verification and self-drafting. Before a pass, the target runs where
    a draft would: its caches then are as its own last pass left them. `ValueError` if the models' context is too short for the
    widest pass or a prompt, or their vocabulary too small for the trees.
    """
    target, draft = pair.target, pair.draft or pair.target
    generator = torch.Generator().manual_seed(config.seed)
    room = min(target.context_limit - max(config.target_tokens), draft.context_limit - max(config.draft_rows))
    contexts, notes = cut("contexts", config.contexts, room)
    longest = min(target.context_limit, draft.context_limit) - CONTINUATION
    prompts, more_notes = cut("prefill_tokens", config.prefill_tokens, longest)
    config = replace(config, contexts=contexts, prefill_tokens=prompts)
    timed = TimedPair(pair, config, generator)
    cells = [
        *pass_cells(pair, config, generator),
        *plain_cells(pair, timed, config),
        *prefill_cells(pair, config, generator),
        *round_cells(timed, config),
        *guessing_cells(timed, config),
    ]
    if pair.draft is None:
        cells = [cell for cell in cells if not cell.tables[0].startswith("draft")]
    else:
        alternating = committed_states(pair, contexts[0], (1, 1), generator)
        cells += [*branch_cells(timed, config), *decision_cells(pair, config, generator, *alternating)]
    return cells, notes + more_notes


def cut(name: str, grid: Sequence[int], longest: int) -> tuple[tuple[int, ...], list[str]]:
    """``grid`` with what exceeds ``longest`` replaced by it, and a note if anything did."""
    if longest < 1:
        raise ValueError(
            f"the models' context is {1 - longest} tokens too short for the grid. "
            "Shorten latency.target_tokens and latency.draft_rows."
        )
    kept = tuple(sorted({min(value, longest) for value in grid}))
    too_long = [value for value in grid if value > longest]
    return kept, [f"{name} {too_long} are cut to {longest}: the models hold no more"] if too_long else []
