"""Multi-draft hierarchical speculative decoding (paper's appendix F) in its lossless form.

    u = (),  R = p(. | root)
    for each path x in draw order that starts with u and is unused:
        block-verify the rest of x after u, with R instead of the target's distribution at its first position
        accepted as a whole: stop, y ~ p;   accepted to u': u = u', R = the residual there
    emit u, y ~ R

Block verification restarts with prefix weight 1; paths that do not share u are skipped for ever. A tree's paths are read off its
draws: a path takes the first unused draw of every node it comes through, so i.i.d. rollouts merged into a tree are separate
again, and a spare rollout at a depth of a main chain is a path too. A history of outcomes ends at a node with

    R = norm [a p - μ q]_+          (a, μ) = (P_t, 1) after a chain that stopped there, μ grows by Σ [a p - μ q]_+ per rejection

and what follows a node mixes the histories that end there. Trying no further path is lossless at any point that was reached, so
histories below `SMALLEST_HISTORY` of probability end where they are: that bounds the work. Source: specification of verification,
section 3.4; block verification: `runtime.verification.chain`. Shape suffixes: G tokens of a path, V vocabulary.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.tree import TokenTree
from runtime.verification.chain import block_tests, last_success, log_ratios
from runtime.verification.draws import Draws, take
from runtime.verification.outcome import OutcomeLaw, excess_mass, normalised, normalised_or

SMALLEST_HISTORY = 2.0**-20


@dataclass(frozen=True)
class _State:
    """State of the walk, which stands at ``row``, ``used`` of whose draws were tried; the next token follows
    norm [scale p - draft_scale q]_+, and ``mass`` is its normaliser."""

    row: int
    used: int
    scale: float
    draft_scale: float
    mass: float = field(compare=False)


def hsd_multi_draft(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
    """Multi-draft HSD: block-verify the drafted paths one after the other."""
    draws = Draws.of(tree, target_probs)
    ended = _histories(draws)
    stop_R = target_probs.new_zeros(tree.num_nodes + 1, dtype=torch.float64)
    for state, probability in ended.items():
        stop_R[state.row] += probability

    def residual(row: int | Tensor) -> Tensor:
        target_V, weights_V = target_probs[row], torch.zeros_like(target_probs[0])
        for state, probability in ended.items():
            if state.row == int(row):
                own_V = state.scale * target_V - state.draft_scale * draws.draft_law(state.row)
                weights_V += probability * normalised_or(own_V.clamp(min=0), target_V)
        return normalised_or(weights_V, target_V)

    return OutcomeLaw(normalised(stop_R), tree.depths, residual)


def _histories(draws: Draws) -> dict[_State, float]:
    """Probabilities of all states in which a history of outcomes ends; those that stand in the same state are merged."""
    ended: dict[_State, float] = defaultdict(float)
    alive: dict[_State, float] = {_State(0, 0, 1.0, 0.0, 1.0): 1.0}
    while alive:
        following: dict[_State, float] = defaultdict(float)
        for state, probability in alive.items():
            path = _path(draws, state)
            if not path or probability < SMALLEST_HISTORY or state.mass == 0:
                ended[state] += probability
                continue
            for after, share in _verified(draws, state, path):
                following[after] += probability * share
        alive = following
    return ended


def _path(draws: Draws, state: _State) -> list[tuple[int, int]]:
    """Find the next unused path from ``state``: its nodes, each with the number of its own draws used before."""
    path: list[tuple[int, int]] = []
    row, used = state.row, state.used
    while used < len(draws.lists[row]):
        node = draws.lists[row][used]
        used = draws.lists[row][:used].count(node)
        path.append((node, used))
        row = node + 1
    return path


def _verified(draws: Draws, state: _State, path: list[tuple[int, int]]) -> list[tuple[_State, float]]:
    """Block-verify ``path`` from ``state``: the states it may end in, with their probabilities."""
    nodes = [node for node, _ in path]
    rows = [state.row, *(node + 1 for node in nodes)]
    target_GV, draft_GV = (take(law, rows[:-1]) for law in (draws.target_RV, draws.draft_RV))
    chosen_G1 = draws.tokens[nodes].unsqueeze(1)
    log_ratio_G = log_ratios(target_GV, draft_GV, chosen_G1)
    target, draft = (float(law[0, chosen_G1[0]]) for law in (target_GV, draft_GV))
    first = max(state.scale * target - state.draft_scale * draft, 0.0) / state.mass / draft if draft > 0 else 0.0
    log_ratio_G[0] = math.log(first) if first > 0 else -math.inf
    prefix_G1, mass_G, test_G1 = block_tests(target_GV, draft_GV, log_ratio_G)
    stops = last_success(test_G1).tolist()
    scales, masses = prefix_G1.tolist(), mass_G.tolist()
    ends = [_rejected(draws, state)]
    for place, (node, used) in enumerate(path[:-1], start=1):
        ends.append(_State(node + 1, used + 1, scales[place], 1.0, masses[place]))
    ends.append(_State(rows[-1], len(draws.lists[rows[-1]]), 1.0, 0.0, 1.0))
    return [(end, share) for end, share in zip(ends, stops, strict=True) if share > 0]


def _rejected(draws: Draws, state: _State) -> _State:
    """Return ``state`` after one more draw was rejected there."""
    target_1V, draft_1V = (take(law, [state.row]) for law in (draws.target_RV, draws.draft_RV))
    draft_scale = state.draft_scale + state.mass
    scales = torch.tensor([[state.scale], [draft_scale]], dtype=torch.float64, device=target_1V.device)
    mass = float(excess_mass(target_1V, draft_1V, *scales))
    return _State(state.row, state.used + 1, state.scale, draft_scale, mass)
