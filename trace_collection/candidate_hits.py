"""How often one of several candidates is accepted, given the token that comes out. Shape suffixes: N places, V vocabulary."""

import torch
from torch import Tensor

from runtime.randomness import Chance

LEAST_MASS = 1e-12  # below which nothing can be rejected


def candidate_hits(target_NV: Tensor, draft_NV: Tensor, tokens_N: Tensor, count: int, chance: Chance) -> Tensor:
    """P(one of k candidates is accepted | the token that comes out) for k from 1 to ``count`` [N, count].

    Candidates are drawn from the draft's law without replacement and tried in turn: x is accepted with min(1, p/q), else p
    becomes [p - q]_+ and q loses x, both normalised. Exact for the first candidate; behind it along one sequence of rejected
    candidates drawn from [q - p]_+, weighted by how likely the rejections were, whose mean is exact.
    """
    left_NV = target_NV.double()  # the target's mass not accepted yet
    draft_NV = draft_NV.double()  # the next candidates' laws
    weight_N = torch.ones_like(left_NV[:, 0])  # P(all rejected so far), along the sequence
    place = tokens_N.unsqueeze(1)
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
