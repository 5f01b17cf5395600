"""Traversal verification (Weng et al. 2025): the whole tree, leaves first.

    VISIT(u, a):                              the target mass a p(. | u) must still come out of u
        for each child c in draw order:       a_c = min(1, g(c) / Q(c)),  g by recursive rejection from a p
            VISIT(c, a_c); if it accepts, done
        accept u with the weight a' that is left, next token from norm g

A child drawn twice is visited at its first copy and costs one residual update per copy. All weights follow from the tree, so
the outcome is that of coins in visiting order: P(stop at v_i) = a'_i Π_{j<i} (1 - a'_j). The root's weight is 1.
On a chain this is block verification; on deterministic candidates it is naive sampling (``nss``). Source: specification of
verification, sections 0.1 and 6. Shape suffixes: R rows (the root, then the nodes), V vocabulary.
"""

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.tree import DraftLaw, TokenTree
from runtime.verification.draws import Draws, residual_chain, residual_weights, take
from runtime.verification.outcome import OutcomeLaw, at_row, first_success, normalised, normalised_or
from runtime.verification.top_down import nss, top_down


def traversal(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
    """Verify a tree bottom-up; lossless for draws with and without replacement."""
    if tree.law is DraftLaw.DETERMINISTIC:
        return top_down(nss)(tree, target_probs)
    draws = Draws.of(tree, target_probs)
    entry_R = target_probs.new_zeros(tree.num_nodes + 1, dtype=torch.float64)
    entry_R[0] = 1.0
    left_R, draft_scale_R = torch.zeros_like(entry_R), torch.zeros_like(entry_R)
    for level in tree.rows_by_depth:
        rows = draws.rows(among=level)
        left_R[level] = entry_R[level]
        if rows:
            at = on_device(rows, entry_R.device)
            accept_RK, left_R[at], draft_scale_R[at] = residual_chain(draws, rows, entry_R[at])
            entry_RK = torch.where(take(draws.first_RK, rows), accept_RK, 0.0)
            entry_R.index_add_(0, take(draws.nodes_RK, rows).flatten() + 1, entry_RK.flatten())

    def residual(row: int | Tensor) -> Tensor:
        return normalised_or(residual_weights(draws, row, entry_R, draft_scale_R), at_row(target_probs, row))

    return OutcomeLaw(_stop(tree, left_R), tree.depths, residual)


def _stop(tree: TokenTree, weight_R: Tensor) -> Tensor:
    """Return stop probabilities [R] of coins ``weight_R`` tossed in visiting order: children in draw order, then their parent."""
    order: list[int] = []  # reversed: a parent, then its children from the last to the first
    pending = [0]
    while pending:
        row = pending.pop()
        order.append(row)
        pending += [node + 1 for node in dict.fromkeys(tree.child_lists[row])]
    order.reverse()
    at = on_device(order, weight_R.device)
    coins = weight_R[at]
    coins[-1] = 1.0
    stop_R = torch.zeros_like(weight_R)
    stop_R[at] = first_success(coins)
    return normalised(stop_R)
