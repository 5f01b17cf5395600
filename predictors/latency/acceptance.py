"""How many drafted tokens survive: the law of a chain's accepted length, from histograms of rounds.

A histogram counts the rounds of chains of one length γ_max: n_i of them accepted i tokens. A round that accepted all γ_max is
censored: it would have gone on. Depth d was tested in the rounds that drafted d tokens and accepted d - 1 or more, and passed in
those that accepted d or more. Over all histograms

    α_d = Σ passed at d / Σ tested at d           at one depth
    α = Σ_d passed / Σ_d tested                   at all: accepted / (accepted + rejections)

α is the maximum-likelihood estimate of the truncated geometric law, in which all tokens are accepted alike. A chain of γ accepts
i tokens with probability

    iid         α^i (1-α)  for i < γ,  α^γ  for i = γ
    measured    (Π_{d<=i} α_d) (1-α_{i+1})  for i < γ,  Π_{d<=γ} α_d  for i = γ;   α_d = α at depths that were never tested

The measured law of a single histogram is the histogram itself, cut at γ: a shorter chain accepts min(accepted, γ) tokens. Source:
specification of drafting, sections 4.2 (priors) and 10 (E[X] of the truncated geometric law). Shape suffixes: G entries 0 to γ, D
depths from 1.
"""

from collections.abc import Sequence

import numpy as np

SUM_TOLERANCE = 1e-6


class AcceptanceStatistics:
    """Acceptance over rounds of chains, of one length or of several.

    ``rate`` is the maximum-likelihood α of the truncated geometric law; ``by_depth`` [longest draft] holds α_d, NaN at depths
    that no round came to.

    Parameters
    ----------
    histograms
        One per draft length γ_max >= 1. Entry i: rounds that accepted i tokens, i from 0 to γ_max. Leave out rounds that the
        budget, an end-of-sequence token or a controller cut short.

    Examples
    --------
    >>> AcceptanceStatistics([[1, 1, 2]]).rate  # 1 + 2 * 2 accepted tokens, 2 rejections
    0.7142857142857143
    """

    def __init__(self, histograms: Sequence[Sequence[int]]) -> None:
        for counts in histograms:
            if len(counts) < 2 or min(counts) < 0:
                raise ValueError(
                    f"a histogram must count rounds by 0 to γ_max >= 1 accepted tokens, got {list(counts)}."
                )
        if not any(map(any, histograms)):
            raise ValueError("no rounds to learn acceptance from: all histograms are empty.")
        tested_D, passed_D = np.zeros((2, max(map(len, histograms)) - 1))
        for counts in histograms:
            reached_G = np.cumsum(counts[::-1])[::-1]
            tested_D[: len(counts) - 1] += reached_G[:-1]
            passed_D[: len(counts) - 1] += reached_G[1:]
        self.rate = float(passed_D.sum() / tested_D.sum())
        with np.errstate(invalid="ignore"):
            self.by_depth = passed_D / tested_D

    def accepted_law(self, gamma: int) -> np.ndarray:
        """Probabilities [gamma + 1] of 0 to ``gamma`` accepted tokens."""
        require_at_least("gamma", gamma, 0)
        alphas_D = np.full(gamma, self.rate)
        known = self.by_depth[:gamma]
        alphas_D[: len(known)] = np.where(np.isnan(known), self.rate, known)
        reached_G = np.cumprod(np.append(1.0, alphas_D))
        return reached_G - np.append(reached_G[1:], 0.0)


def iid_accepted_law(alpha: float, gamma: int) -> np.ndarray:
    """Truncated geometric law [gamma + 1] of the accepted tokens of a chain of ``gamma``, each accepted with ``alpha``."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha}.")
    require_at_least("gamma", gamma, 0)
    reached_G = alpha ** np.arange(gamma + 1)
    return np.append(reached_G[:-1] * (1 - alpha), reached_G[-1])


def truncated_law(accepted_law: Sequence[float] | np.ndarray, gamma: int) -> np.ndarray:
    """Law [gamma + 1] of min(accepted, ``gamma``): that of a shorter chain. ``accepted_law``: of ``gamma`` tokens or more."""
    law_G = np.asarray(accepted_law, dtype=np.float64)
    require_at_least("gamma", gamma, 0)
    if law_G.ndim != 1 or len(law_G) <= gamma:
        raise ValueError(
            f"an accepted distribution of shape {law_G.shape} does not reach gamma={gamma}: pass {gamma + 1} probabilities."
        )
    if not (law_G >= 0).all() or abs(law_G.sum() - 1) > SUM_TOLERANCE:
        raise ValueError(f"an accepted distribution must be >= 0 and sum to 1, got {law_G.tolist()}.")
    return np.append(law_G[:gamma], law_G[gamma:].sum())


def require_at_least(name: str, value: float, least: float) -> None:
    """`ValueError` if ``value`` is below ``least``."""
    if not value >= least:
        raise ValueError(f"{name} must be >= {least}, got {value}.")
