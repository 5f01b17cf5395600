"""Sampling distributions: from logits to the probabilities that tokens are really drawn from.

    p = softmax(top_p(top_k(logits / T)))        T = 0: the exact one-hot of the first maximal logit

Computed in promote_types(logits.dtype, float32), so bfloat16 logits never give bfloat16 probabilities. A distribution is
divided by the float64 sum of its entries: softmax's own, over 50,000 tokens on a CPU with AVX2, is off by 1e-6, and the outcome
of a verdict on two close ones was off by 4e-5 (now 1e-6). The filters keep the same tokens as Hugging Face's logits processors.
Shape suffixes: ... any rows, V vocabulary.
"""

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings


def processed_law(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Turn logits [..., V] into probabilities [..., V] under ``settings``."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if settings.greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    if settings.temperature != 1:  # of the largest, which is 0 then, no temperature makes an infinity
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / settings.temperature
    if settings.top_k:
        logits = _keep_top_k(logits, settings.top_k)
    if settings.top_p < 1:
        logits = _keep_top_p(logits, settings.top_p)
    law = torch.softmax(logits, dim=-1)
    return law.div_(law.sum(dim=-1, keepdim=True, dtype=torch.float64).to(law.dtype))


def says_something(logits: Tensor) -> Tensor:
    """Tell whether rows [...] of ``logits`` [..., V] have a distribution: no NaN, no +inf, a possible token."""
    return logits.amax(dim=-1).isfinite()


def recorded_law(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Compute `processed_law`; `ValueError` where a row has no distribution, from which there is nothing to learn."""
    if not bool(says_something(logits).all()):
        raise ValueError("logits are not finite: check the weights and dtypes of target and draft.")
    return processed_law(logits, settings)


def fit_vocabulary(logits: Tensor, size: int) -> Tensor:
    """Fit a draft's logits [..., V] to the target's vocabulary: missing ids are impossible, surplus (padding) ids are dropped."""
    own = logits.shape[-1]
    if own == size:
        return logits
    if own > size:
        return logits[..., :size]
    return torch.nn.functional.pad(logits, (0, size - own), value=-torch.inf)


def _keep_top_k(logits: Tensor, top_k: int) -> Tensor:
    threshold = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < threshold, -torch.inf)


def _keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    ascending, order = logits.sort(dim=-1)
    drop = torch.softmax(ascending, dim=-1).cumsum(dim=-1) <= 1 - top_p
    drop[..., -1:].fill_(False)
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)
