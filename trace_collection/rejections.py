"""Rejections where a text's token comes out: of the drafted token by rule, and of candidates tried one after the other.

Shape suffixes: N or R rows, V vocabulary.
"""

import torch
from torch import Tensor

from predictors.replay.acceptance import BLOCK, MATCHED
from runtime.randomness import Chance

LEAST_MASS = 1e-12  # below which nothing can be rejected


def rejected_law(q_RV: Tensor, p_RV: Tensor, y_R: Tensor, weight_R: Tensor, verifier: str) -> Tensor:
    """Weigh [R, V] the drafted token that ``verifier`` rejects where the text's ``y_R`` comes out instead; ``weight_R``: of the
    tokens before it, which block verification looks at."""
    others_RV = q_RV.scatter(1, y_R.unsqueeze(1), 0.0)
    if verifier in MATCHED:
        return others_RV
    kept_RV = p_RV * weight_R.unsqueeze(1) if verifier in BLOCK else p_RV
    surplus_RV = (q_RV - kept_RV).clamp(min=0)
    rounds_R1 = surplus_RV.sum(1, keepdim=True) <= LEAST_MASS  # a token was rejected, so there is some but for rounding
    return torch.where(rounds_R1, others_RV + LEAST_MASS, surplus_RV)


def candidate_hits(target_NV: Tensor, draft_NV: Tensor, tokens_N: Tensor, count: int, chance: Chance) -> Tensor:
    """Compute P(one of k candidates is accepted | the token that comes out) for k from 1 to ``count`` [N, count].

    Candidates are drawn from the draft without replacement and tried one after the other: x is accepted with min(1, p/q), else
    p becomes [p - q]_+ and q loses x, both normalised. Exact for the first candidate; after it along one sequence of rejected
    candidates drawn from [q - p]_+, weighted by how likely the rejections were, whose mean is exact.
    """
    drawn_V = (draft_NV > 0).any(0)  # other tokens are one: none of them is ever a candidate
    rest_N1 = target_NV[:, ~drawn_V].double().sum(1, keepdim=True)
    left_NV = torch.cat([target_NV[:, drawn_V].double(), rest_N1], dim=1)  # the target's mass not accepted yet
    draft_NV = torch.nn.functional.pad(draft_NV[:, drawn_V].double(), (0, 1))  # the next candidates' distributions
    weight_N = torch.ones_like(left_NV[:, 0])  # P(all rejected so far), along the sequence
    column_V = torch.where(drawn_V, drawn_V.cumsum(0) - 1, drawn_V.sum())
    place = column_V[tokens_N].unsqueeze(1)
    out_N = left_NV.gather(1, place).squeeze(1)
    hits, hit_N = [], torch.zeros_like(weight_N)
    for candidate in range(count):
        law_NV = left_NV / left_NV.sum(1, keepdim=True).clamp(min=LEAST_MASS)
        taken_NV = torch.minimum(law_NV, draft_NV)
        hit_N = hit_N + weight_N * taken_NV.gather(1, place).squeeze(1) / out_N
        hits.append(hit_N)
        surplus_NV = (draft_NV - law_NV).clamp(min=0)
        rejected_N = surplus_NV.sum(1)
        weight_N = weight_N * rejected_N
        open_N = weight_N > LEAST_MASS
        if candidate + 1 == count or not bool(open_N.any()):
            hits += [hit_N] * (count - candidate - 1)
            break
        tried_N = chance.categorical(torch.where(open_N.unsqueeze(1), surplus_NV, draft_NV))
        left_NV = (law_NV - draft_NV).clamp(min=0)
        draft_NV = draft_NV.scatter(1, tried_N.unsqueeze(1), 0.0)
        draft_NV = draft_NV / draft_NV.sum(1, keepdim=True).clamp(min=LEAST_MASS)
    return torch.stack(hits, dim=1).clamp(max=1.0).float()
