"""Scores of drawn tokens y. Each has mean 0, whatever stands in front, if y is drawn from the target's probabilities p there.

    log-probability       log p(y) + H
    squared probability   p(y) - Σ p²
    likeliest token       1{y = g} - p(g)                    g = argmax p
    copied token          1{y = g} - p(g)                    g: the token that followed when the text last ended as now
    draft's share         min(1, q(y) / p(y)) - Σ min(p, q)  q: a draft's; p' / p - 1 where rejected drafts are redrawn by p
    transform             u = Σ_{p(x) > p(y)} p(x) + U Σ_{p(x) = p(y)} p(x), uniform if y ~ p; U uniform

Variance and third moment of a score follow from p, so its sums over a text are martingales of known variance. Filters come in
the order temperature, min-p, top-k, top-p. A token with p(y) = 0 has no score. Where rounding may have kept it, by filters
wider by `EDGE`, or at temperature 0 by a near-tie, it is at the edge, else ``impossible``. Source: Dawid, Statistical theory:
the prequential approach, 1984. Shape suffixes: N tokens, V vocabulary; 3: score, variance, third moment.
"""

from dataclasses import replace
from math import log

import numpy as np
import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.laws import recorded_law

EDGE = 0.05  # of what a filter keeps or drops
TIE = 1e-3  # of logits in float32, by the order of sums
NO_GUESS = -1
SCORES = ("log-probability", "squared probability", "likeliest token", "copied token", "draft's share")
Columns = dict[str, np.ndarray]  # [N], of scores [3, N]


def scored(
    logits_NV: Tensor,
    tokens_N: Tensor,
    copied_N: Tensor,
    uniform_N: Tensor,
    settings: SamplingSettings,
    min_p: float = 0.0,
    draft_NV: Tensor | None = None,
    rounding: float = 0.0,
) -> Columns:
    """Compute the columns of drawn tokens from the target's logits in front of them, and a draft's if there is one.

    ``copied_N``: guesses, `NO_GUESS` where there is none; ``uniform_N``: numbers U in [0, 1); ``rounding``: share of the larger
    logit by which a near-tie may differ, besides `TIE`. ``gain``: log-probability, unfiltered, over that of a blind guess.
    """
    logits_NV = logits_NV.double()
    law_NV = filtered_law(logits_NV, settings, min_p)
    own_N1, ids_V = law_NV.gather(-1, tokens_N[:, None]), torch.arange(law_NV.shape[-1], device=law_NV.device)
    log_NV, known_N = law_NV.clamp(min=torch.finfo(law_NV.dtype).tiny).log(), own_N1.squeeze(-1) > 0
    hits = ((ids_V == guess_N[:, None]).double() for guess_N in (law_NV.argmax(-1), copied_N))
    values = [log_NV, law_NV, *hits]
    if draft_NV is not None:
        values.append((filtered_law(draft_NV.double(), settings, min_p) / law_NV).nan_to_num(1.0).clamp(max=1))
    named = zip(SCORES, values, strict=False)
    columns = {name: centred(law_NV, value_NV, tokens_N) * known_N for name, value_NV in named}
    above_N, tied_N = ((law_NV * rows_NV).sum(-1) for rows_NV in (law_NV > own_N1, law_NV == own_N1))
    columns |= {"transform": above_N + uniform_N * tied_N, "known": known_N, "top": law_NV.amax(-1)}
    columns["entropy"] = -(law_NV * log_NV).sum(-1)
    columns["gain"] = _at(logits_NV, tokens_N) - logits_NV.logsumexp(-1) + log(len(ids_V))
    columns["impossible"] = ~(known_N | _at_edge(logits_NV, tokens_N, settings, min_p, rounding))
    return {name: column.cpu().numpy() for name, column in columns.items()}


def filtered_law(logits_NV: Tensor, settings: SamplingSettings, min_p: float) -> Tensor:
    """Compute `runtime.laws.processed_law` over tokens of at least ``min_p`` times the largest probability; `ValueError` where
    logits are not finite."""
    if min_p:
        below_NV = logits_NV - logits_NV.amax(-1, keepdim=True) < settings.temperature * log(min_p)
        logits_NV = logits_NV.masked_fill(below_NV, -torch.inf)
    return recorded_law(logits_NV, settings)


def centred(law_NV: Tensor, value_NV: Tensor, tokens_N: Tensor) -> Tensor:
    """Compute value(y) less its mean, with its variance and third central moment [3, N]."""
    off_NV = value_NV - (law_NV * value_NV).sum(-1, keepdim=True)
    return torch.stack([_at(off_NV, tokens_N), *((law_NV * off_NV**power).sum(-1) for power in (2, 3))])


def _at_edge(logits_NV: Tensor, tokens_N: Tensor, settings: SamplingSettings, min_p: float, rounding: float) -> Tensor:
    if settings.greedy:
        own_N, likeliest_N = _at(logits_NV, tokens_N), logits_NV.amax(-1)
        return likeliest_N - own_N <= TIE + rounding * torch.maximum(likeliest_N.abs(), own_N.abs())
    top_k, top_p = settings.top_k and settings.top_k + 1, 1 - (1 - settings.top_p) * (1 - EDGE)
    wider = replace(settings, top_k=top_k, top_p=top_p)
    return _at(filtered_law(logits_NV, wider, min_p * (1 - EDGE)), tokens_N) > 0


def _at(rows_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return rows_NV.gather(-1, tokens_N[:, None]).squeeze(-1)
