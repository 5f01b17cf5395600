"""Acceptance rates of the per-node solvers along drafted paths, by depth, and how far the laws are apart there.

    rate        P[the solver's output is among the node's draws], exact (`runtime.verification.acceptance`); Khisti's, whose exact
                rate is quadratic in the vocabulary, is the mean over sampled lists of draws of Σ B(list -> y) over the list
    distance    ‖p - q‖₁ of the node's target and draft law

Every drafted path counts once: a node that several rollouts run through weighs as many. ``draws``: the number of draws at the
node as it was drafted (0 in the table), and a fixed number at every depth (paper 004, Figure 1).
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pipelines.measuring.harness import seed_of
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.tables import AS_DRAFTED
from pipelines.measuring.verifiers.roots import Root
from runtime import Randomness
from runtime.decoding.base import Evidence
from runtime.verification.acceptance import ACCEPTANCE_RATES, acceptance_rate, branching_law

SAMPLED = "khisti"


@torch.inference_mode()
def acceptance_rows(evidence: Evidence, root: Root, fixed_draws: int, lists: int) -> Rows:
    """Rows of one i.i.d. tree: one per depth, solver and number of draws; ``lists`` are sampled per node where needed."""
    tree, rows = evidence.tree, []
    weights = _paths_through(tree.child_lists)
    for depth, level in enumerate(tree.rows_by_depth):
        inner = [row for row in level if tree.child_lists[row]]
        if not inner:
            continue
        weight_R = torch.tensor([weights[row] for row in inner], dtype=torch.float64)
        distance = _mean(_distance(evidence, inner), weight_R)
        place = {**root.place, "depth": depth, "distance": distance, "paths": int(weight_R.sum())}
        for solver in ACCEPTANCE_RATES:
            for draws in (AS_DRAFTED, fixed_draws):
                chance = Randomness(seed_of(f"{root.seed}/{depth}/{draws}"))
                rate_R = _rates(evidence, inner, solver, draws, partial(_sampled_rates, lists=lists, chance=chance))
                rows.append({**place, "solver": solver, "draws": draws, "rate": _mean(rate_R, weight_R)})
    return rows


def _paths_through(child_lists: Sequence[Sequence[int]]) -> list[int]:
    """Rollouts through every row: its draws, for the root all of them that leave it."""
    counts = [len(child_lists[0]), *[0] * (len(child_lists) - 1)]
    for children in child_lists:
        for node in children:
            counts[node + 1] += 1
    return counts


def _distance(evidence: Evidence, rows: Sequence[int]) -> Tensor:
    target_RV, draft_RV = _laws(evidence, rows)
    return (target_RV - draft_RV).abs().sum(1).double()


def _rates(evidence: Evidence, rows: Sequence[int], solver: str, draws: int, sampled: Callable[..., Tensor]) -> Tensor:
    counts = [draws or len(evidence.tree.child_lists[row]) for row in rows]
    rate_R = torch.zeros(len(rows), dtype=torch.float64)
    for count in set(counts):
        places = [place for place, own in enumerate(counts) if own == count]
        laws = _laws(evidence, [rows[place] for place in places])
        rates = sampled(*laws, count) if solver == SAMPLED and count > 1 else acceptance_rate(solver, *laws, count)
        rate_R[places] = rates.cpu()
    return rate_R


def _sampled_rates(target_RV: Tensor, draft_RV: Tensor, count: int, lists: int, chance: Randomness) -> Tensor:
    """Unbiased estimates [R] of Khisti's rate: Σ B over the distinct tokens of ``lists`` lists of ``count`` draws."""
    rate_R = torch.zeros(len(target_RV), dtype=torch.float64)
    for row, (target_V, draft_V) in enumerate(zip(target_RV, draft_RV, strict=True)):
        for tokens in chance.categorical(draft_V.expand(lists, count, -1)).tolist():
            branching_V = branching_law(SAMPLED, target_V, draft_V, tokens)
            rate_R[row] += float(branching_V[sorted(set(tokens))].sum()) / lists
    return rate_R


def _laws(evidence: Evidence, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    assert evidence.tree.draft_probs is not None
    target_RV = evidence.target_probs[list(rows)]
    return target_RV, evidence.tree.draft_probs.to(target_RV.device)[list(rows)]


def _mean(values_R: Tensor, weight_R: Tensor) -> float:
    return float((values_R.cpu() * weight_R).sum() / weight_R.sum())
