"""The intermediate token of the Khisti rule: a tournament among k draws x_1 … x_k ~ q whose winner Z follows a known q_I.

    q_I^{(1)} = q;  round i confronts the winner so far (~ q1 = q_I^{(i)}) with x_{i+1} (~ q2 = q):
    rank the tokens by p - q1 q2, descending (ties by token id)
    Z' = the better ranked of the two;  if both rank in the top s: i over j with probability W_ij = 1 - W_ji
    q_I^{(i+1)}(y) = q1(y) b2(y) + q2(y) b1(y)                                        mass that y beats, itself half:
        b(y) = q(y)/2 + T(y)                       outside the top s                  T(y) = mass ranked after y
        b(y) = Σ_{j in top s} W_yj q(j) + T(s)     inside, with W_yy = 1/2            T(s) = mass outside the top s
    W maximises Σ_{top s} min(p, q_I^{(i+1)}): the maximum flow from pairs, of supply m_ij = q1(i)q2(j) + q1(j)q2(i), to tokens,
    of capacity [p - base]_+, base = q1 q2 + q1 T2(s) + T1(s) q2; supply that finds no capacity is never moved

Naive verification of Z against q_I is then lossless for any ranks and weights, as long as q_I is computed from the same ones:
``B(y) = Σ_z P[Z=z] (1[y=z] a(z) + (1-a(z)) R(y))``, ``a = min(1, p/q_I)``, ``R = norm [p - q_I]_+``.

Source: Khisti et al. 2025, canonical decomposition; the selector is that of the reference implementation (specification of
verification, section 4). Symbols: p ``target_V``, q ``draft_V``, q1 ``winner_V``, q_I ``law_V``, k ``num_draws``, s ``top``,
W ``weights_SS``. Shape suffixes: V vocabulary; S the top s ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TournamentRound:
    """One confrontation: tokens by rank, the rank of each token, and who wins among the top ranks (diagonal 1/2)."""

    order_V: Tensor
    rank_V: Tensor
    weights_SS: list[list[float]]

    def winner_law(self, winner_V: Tensor, draft_V: Tensor) -> Tensor:
        """Compute the distribution [..., V] of the winner of two independent tokens; of less mass if the given ones have less."""
        winner_V, draft_V = winner_V[..., self.order_V], draft_V[..., self.order_V]
        ranked_law_V = winner_V * self._beaten(draft_V) + draft_V * self._beaten(winner_V)
        return ranked_law_V[..., self.rank_V]

    def _beaten(self, ranked_V: Tensor) -> Tensor:
        weights_SS = ranked_V.new_tensor(self.weights_SS)
        top = len(weights_SS)
        tail_V = ranked_V.flip(-1).cumsum(-1).flip(-1)
        outside = tail_V[..., top : top + 1].sum(-1, keepdim=True)
        inside_S = ranked_V[..., :top] @ weights_SS.T + outside
        return torch.cat([inside_S, (tail_V - ranked_V / 2)[..., top:]], dim=-1)

    def wins(self, rank: int, other_rank: int) -> float:
        """Return P[the token of ``rank`` wins over another one]."""
        if max(rank, other_rank) < len(self.weights_SS):
            return self.weights_SS[rank][other_rank]
        return float(rank < other_rank)


@dataclass(frozen=True, eq=False)
class Tournament:
    """A tournament, before any draw: ``law_V`` [V], in the draft's dtype, is the distribution of the winner of ``num_draws``."""

    law_V: Tensor
    num_draws: int
    rounds: tuple[TournamentRound, ...]

    def winner(self, tokens: Sequence[int]) -> list[float]:
        """Compute P[Z = tokens[j]] for the draws in order; a token's first copy has it all, later copies 0. Sums to 1."""
        if len(tokens) != self.num_draws:
            raise ValueError(
                f"{len(tokens)} tokens in a tournament of {self.num_draws} draws; give every draw, duplicates too."
            )
        share = [1.0] + [0.0] * (len(tokens) - 1)
        if not self.rounds:
            return share
        drawn = torch.as_tensor(tokens, device=self.law_V.device)
        ranks = torch.stack([one_round.rank_V[drawn] for one_round in self.rounds]).tolist()
        for challenger, (one_round, rank) in enumerate(zip(self.rounds, ranks, strict=True), start=1):
            first_copy = tokens.index(tokens[challenger])
            for holder in range(challenger):
                if holder != first_copy:
                    kept = share[holder] * one_round.wins(rank[holder], rank[challenger])
                    share[first_copy] += share[holder] - kept
                    share[holder] = kept
        return share


def run_tournament(target_V: Tensor, draft_V: Tensor, num_draws: int, top: int = 5) -> Tournament:
    """Plan a tournament of ``num_draws`` draws from ``draft_V``, before any is drawn; 1 gives ``law_V = draft_V``. Pairs of the
    ``top`` ranks (clamped to 2 … 15 and to V) are weighted, others won by the better one. Distributions are float32 or float64.

    Examples
    --------
    >>> target, draft = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.5, 0.25, 0.25])
    >>> tournament = run_tournament(target, draft, num_draws=2)
    >>> tournament.law_V.tolist()
    [0.5, 0.4375, 0.0625]
    >>> tournament.winner([2, 1])
    [0.0, 1.0]
    """
    if num_draws < 1:
        raise ValueError(f"num_draws is {num_draws}; a tournament needs at least one draw.")
    top = min(max(top, 2), 15, draft_V.numel())
    law_V, rounds = draft_V, []
    for _ in range(num_draws - 1):
        rounds.append(_plan_round(target_V, law_V, draft_V, top))
        law_V = rounds[-1].winner_law(law_V, draft_V)
    # a float32 q sums to 1 + ε and the winner's, of degree k in q, to (1 + ε)^k; the draws' own to 1
    if rounds:
        law_V = law_V / law_V.sum(dtype=torch.float64)
    return Tournament(law_V, num_draws, tuple(rounds))


def _plan_round(target_V: Tensor, winner_V: Tensor, draft_V: Tensor, top: int) -> TournamentRound:
    order_V = (target_V - winner_V * draft_V).argsort(descending=True, stable=True)
    rank_V = torch.empty_like(order_V).scatter_(0, order_V, torch.arange(len(order_V), device=order_V.device))
    laws_3V = torch.stack([target_V, winner_V, draft_V])[:, order_V]
    head_3S, outside_3 = laws_3V[:, :top], laws_3V[:, top:].sum(1, keepdim=True)
    (*target, _), (*winner, winner_outside), (*draft, draft_outside) = torch.cat([head_3S, outside_3], 1).tolist()
    base = [w * (d + draft_outside) + d * winner_outside for w, d in zip(winner, draft, strict=True)]
    capacity = [max(0.0, t - b) for t, b in zip(target, base, strict=True)]
    supply = [[w * b + a * d for b, a in zip(draft, winner, strict=True)] for w, d in zip(winner, draft, strict=True)]
    return TournamentRound(order_V, rank_V, _weights(supply, capacity))


def _weights(supply: list[list[float]], capacity: list[float]) -> list[list[float]]:
    """Solve a maximum flow from the pairs i < j (supply[i][j]) to the tokens: its weights W [S, S], 1/2 on the diagonal.

    Every pair starts with its better rank; overloaded tokens then pass credit on to tokens with capacity to spare. Each push
    empties an excess, a spare capacity or a credit to exactly 0.0, so shortest paths (Edmonds & Karp) bound their number in
    floating point too. A token left without a path never gets one later: no path enters what it reaches.
    """
    size = len(capacity)
    credit = [[supply[i][j] if i < j else 0.0 for j in range(size)] for i in range(size)]
    spare = [room - sum(row) for room, row in zip(capacity, credit, strict=True)]
    for token in range(size):
        while spare[token] < 0 and (path := _shortest_path(credit, spare, token)):
            amount = min(-spare[token], spare[path[-1]], *(credit[i][j] for i, j in pairwise(path)))
            spare[token] += amount
            spare[path[-1]] -= amount
            for i, j in pairwise(path):
                credit[i][j] -= amount
                credit[j][i] += amount
    weights = [[0.5] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1, size):
            total = credit[i][j] + credit[j][i]
            weights[i][j] = credit[i][j] / total if total > 0 else 1.0
            weights[j][i] = 1.0 - weights[i][j]
    return weights


def _shortest_path(credit: list[list[float]], spare: list[float], start: int) -> list[int]:
    """Find tokens from ``start`` to the nearest with capacity to spare, each holding credit of a pair with the next; or []."""
    paths, seen = [[start]], {start}
    for path in paths:
        if spare[path[-1]] > 0:
            return path
        for neighbour, amount in enumerate(credit[path[-1]]):
            if amount > 0 and neighbour not in seen:
                seen.add(neighbour)
                paths.append([*path, neighbour])
    return []
