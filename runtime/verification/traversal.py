"""Traversal verification (Weng et al. 2025): the whole tree, leaves first.

    VISIT(u, a):                              the target mass a p(. | u) must still come out of u
        for each child c in draw order:       a_c = min(1, g(c) / Q(c)),  g by recursive rejection from a p
            VISIT(c, a_c); if it accepts, done
        accept u with the weight a' that is left, next token from norm g

A child drawn twice is visited at its first copy and costs one residual update per copy. All weights follow from the tree, so
the outcome's law is that of coins in visiting order: P(stop at v_i) = a'_i Π_{j<i} (1 - a'_j). The root's weight is 1.
On a chain this is block verification; on deterministic candidates it is naive sampling (``nss``). Source: specification of
verification, sections 0.1 and 6. Shape suffixes: R rows (the root, then the nodes), V vocabulary.
"""

import torch
from torch import Tensor

from runtime.tree import DraftLaw, TokenTree
from runtime.verification.draws import Draws
from runtime.verification.outcome import OutcomeLaw, first_success, normalised, normalised_or
from runtime.verification.residual_chain import residual_chain
from runtime.verification.solvers import nss
from runtime.verification.top_down import top_down


def traversal(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
    """Bottom-up verification; lossless for draws with and without replacement."""
    if tree.law is DraftLaw.DETERMINISTIC:
        return top_down(nss)(tree, target_probs)
    draws = Draws(tree, target_probs)
    entry_R = target_probs.new_zeros(tree.num_nodes + 1, dtype=torch.float64)
    entry_R[0] = 1.0
    left_R, draft_scale_R = torch.zeros_like(entry_R), torch.zeros_like(entry_R)
    for level in tree.rows_by_depth:
        rows = draws.rows(among=level)
        left_R[level] = entry_R[level]
        if rows:
            at = torch.tensor(rows, device=entry_R.device)
            chain = residual_chain(draws, rows, entry_R[at])
            left_R[at], draft_scale_R[at] = chain.weight_R, chain.draft_scale_R
            first_RK = draws.first_RK[at]
            entry_R[draws.nodes_RK[at][first_RK] + 1] = chain.accept_RK[first_RK]

    def residual(row: int | Tensor) -> Tensor:
        target_V = target_probs[row]
        scale, draft_scale = (scales[row].to(target_V.dtype) for scales in (entry_R, draft_scale_R))
        return normalised_or((scale * target_V - draft_scale * draws.draft_law(row)).clamp(min=0), target_V)

    return OutcomeLaw(_stop(tree, left_R), tree.depths, residual)


def _stop(tree: TokenTree, weight_R: Tensor) -> Tensor:
    """Stop probabilities [R] of coins ``weight_R`` tossed in visiting order: children in draw order, then their parent."""
    order: list[int] = []

    def visit(row: int) -> None:
        for node in dict.fromkeys(tree.child_lists[row]):
            visit(node + 1)
        order.append(row)

    visit(0)
    at = torch.tensor(order, device=weight_R.device)
    coins = weight_R[at]
    coins[-1] = 1.0
    stop_R = torch.zeros_like(weight_R)
    stop_R[at] = first_success(coins)
    return normalised(stop_R)
