"""What a solver does at one node: its branching law B(xs -> y), and its acceptance rate over draws and verification.

B is the law of the output y given the ordered draws xs (`runtime.verification.top_down`); Σ_xs Q(xs) B(xs -> y) = p(y). The
acceptance rate is P[y is one of k i.i.d. draws from q]:

    nss        Σ p (1 - (1 - q)^k)
    naive_tree Σ min(p, q) + Σ [p - q]_+ (1 - (1 - q)^{k-1})
    spectr     p_acc + (1 - p_acc) Σ R (1 - (1 - q~)^k),  q~ = q (1 - a) / (1 - β)
    specinfer  1 - Π_i (1 - β_i),  β_i = Σ min(P^i, q)                 (a rejected token has no residual mass)
    khisti     exact, O(k V²) (`runtime.verification.tournament`)

All are at most the optimum min_H p(H) + 1 - q(H)^k. Draws without replacement have no closed form: average the law's own
acceptance over trees. Source: specification of verification, section 4. Shape suffixes: R rows (pairs of laws), V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.tree import DraftLaw
from runtime.verification import tournament
from runtime.verification.draws import Draws
from runtime.verification.outcome import excess_mass, normalised_or
from runtime.verification.top_down import Solver, khisti, naive, nss, recursive_rejection, spectr, thinned

ANY = frozenset(DraftLaw)
ALIASES = {"hsd": "block", "match": "nss"}  # names that are another rule's
NODE_SOLVERS: dict[str, tuple[Solver, frozenset[DraftLaw]]] = {  # with the draft laws that each is lossless for
    "nss": (nss, ANY),
    "naive_tree": (naive, ANY),
    "spectr": (spectr, frozenset({DraftLaw.IID})),
    "khisti": (khisti, frozenset({DraftLaw.IID})),
    "specinfer": (recursive_rejection, frozenset({DraftLaw.IID, DraftLaw.DETERMINISTIC})),
    "rrs_without_replacement": (recursive_rejection, frozenset({DraftLaw.WITHOUT_REPLACEMENT, DraftLaw.DETERMINISTIC})),
}


def with_aliases(name: str) -> list[str]:
    """A rule's own ``name`` and its aliases."""
    return [name, *(alias for alias, known in ALIASES.items() if known == name)]


def branching_law(name: str, target_V: Tensor, draft_V: Tensor, tokens: Sequence[int]) -> Tensor:
    """B(tokens -> ·) [V] float64 of the solver ``name`` for ordered ``tokens`` drawn at one node from ``draft_V``: i.i.d. with
    duplicates, or without replacement for ``rrs_without_replacement``. `ValueError` for a rule over more than one node."""
    known = {alias: found for own, found in NODE_SOLVERS.items() for alias in with_aliases(own)}
    if name not in known:
        raise ValueError(f"verifier {name!r} has no per-node branching distribution. Known: {', '.join(known)}.")
    solver, lossless_for = known[name]
    distinct = list(dict.fromkeys(tokens))
    law = DraftLaw.IID if DraftLaw.IID in lossless_for else DraftLaw.WITHOUT_REPLACEMENT
    lists = [[distinct.index(token) for token in tokens]]
    draws = Draws(lists, torch.tensor(distinct, dtype=torch.int64), law, target_V.unsqueeze(0), draft_V.unsqueeze(0))
    solution = solver(draws)
    residual_V = normalised_or(solution.residual(0).double(), target_V.double())
    return (solution.miss_R[0] * residual_V).index_add(0, draws.tokens_RK[0], solution.direct_RK[0])


def acceptance_rate(name: str, target_RV: Tensor, draft_RV: Tensor, num_draws: int) -> Tensor:
    """Acceptance rate [R] float64 of the solver ``name`` for ``num_draws`` i.i.d. draws from each row's draft law; `ValueError`
    for a rule over more than one node, or whose draws are not i.i.d."""
    if name not in ACCEPTANCE_RATES:
        raise ValueError(f"verifier {name!r} has no per-node acceptance rate. Known: {', '.join(ACCEPTANCE_RATES)}.")
    if num_draws < 1:
        raise ValueError(f"num_draws must be >= 1, got {num_draws}.")
    rate_R: Tensor = ACCEPTANCE_RATES[name](target_RV, draft_RV, num_draws)
    return rate_R.clamp(0, 1)


def _nss(target_RV: Tensor, draft_RV: Tensor, num_draws: int) -> Tensor:
    return (target_RV * _drawn(draft_RV, num_draws)).sum(1).double()


def _naive(target_RV: Tensor, draft_RV: Tensor, num_draws: int) -> Tensor:
    lucky_RV = (target_RV - draft_RV).clamp(min=0) * _drawn(draft_RV, num_draws - 1)
    return torch.minimum(target_RV, draft_RV).sum(1).double() + lucky_RV.sum(1).double()


def _spectr(target_RV: Tensor, draft_RV: Tensor, num_draws: int) -> Tensor:
    rho_R, _, residual_RV = thinned(
        target_RV, draft_RV, target_RV.new_full((len(target_RV),), num_draws, dtype=torch.float64)
    )
    rejected_RV = (draft_RV - target_RV / rho_R.to(target_RV.dtype).unsqueeze(1)).clamp(min=0)
    miss_R = rejected_RV.sum(1)
    lucky_RV = residual_RV * _drawn((rejected_RV / miss_R.unsqueeze(1)).nan_to_num(0.0), num_draws)
    return 1 - miss_R.double() ** num_draws + lucky_RV.sum(1).double()


def _specinfer(target_RV: Tensor, draft_RV: Tensor, num_draws: int) -> Tensor:
    """μ_j and Π_j of `runtime.verification.draws` with a = 1: Π_k = P(all draws are rejected)."""
    one_R = target_RV.new_ones(len(target_RV), dtype=torch.float64)
    draft_scale_R, rejected_R = torch.zeros_like(one_R), one_R
    for _ in range(num_draws):
        draft_scale_R = draft_scale_R + rejected_R
        rejected_R = excess_mass(target_RV, draft_RV, one_R, draft_scale_R)
    return 1 - rejected_R


def _khisti(target_RV: Tensor, draft_RV: Tensor, num_draws: int) -> Tensor:
    rates = [tournament.acceptance_rate(p_V, q_V, num_draws) for p_V, q_V in zip(target_RV, draft_RV, strict=True)]
    return target_RV.new_tensor(rates, dtype=torch.float64)


def _drawn(draft_RV: Tensor, num_draws: int) -> Tensor:
    """P[a token is among the draws] = 1 - (1 - q)^k."""
    return 1 - (1 - draft_RV) ** num_draws


ACCEPTANCE_RATES = {"nss": _nss, "naive_tree": _naive, "spectr": _spectr, "specinfer": _specinfer, "khisti": _khisti}
