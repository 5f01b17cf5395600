"""How many drafted tokens survive: the law of a chain's accepted length, from a histogram of rounds.

Rounds were drafted at the cap γ_max; n_i of them accepted i tokens. A round that accepted all γ_max is censored: it would have
gone on. Under one acceptance probability α for all tokens (the truncated geometric law) its maximum-likelihood estimate is

    α = Σ_i i n_i / (Σ_i i n_i + Σ_{i<γ_max} n_i)              accepted / (accepted + rejections)

and at depth d, among the rounds that came that far, the share that accepted token d is

    α_d = Σ_{i>=d} n_i / Σ_{i>=d-1} n_i

A chain of γ then accepts i tokens with probability

    iid         α^i (1-α)  for i < γ,  α^γ  for i = γ
    measured    (Π_{d<=i} α_d) (1-α_{i+1})  for i < γ <= γ_max,  Π_{d<=γ} α_d  for i = γ

The measured law is the histogram itself, cut at γ: a shorter chain accepts min(accepted, γ) tokens. Source: specification of
drafting, sections 4.2 (priors) and 10 (E[X] of the truncated geometric law). Shape suffix: G entries 0 to γ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class AcceptanceStatistics:
    """Acceptance over rounds that all drafted γ_max tokens.

    Parameters
    ----------
    counts
        Entry i: rounds that accepted i tokens, i from 0 to γ_max >= 1. Leave out rounds that the budget, an end-of-sequence
        token or a controller cut short.

    Examples
    --------
    >>> AcceptanceStatistics((1, 1, 2)).rate  # 1 + 2 * 2 accepted tokens, 2 rejections
    0.7142857142857143
    """

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.counts) < 2 or min(self.counts) < 0 or not sum(self.counts):
            raise ValueError(
                f"counts must be a histogram of rounds by 0 to γ_max >= 1 accepted tokens, got {list(self.counts)}."
            )

    @property
    def gamma_max(self) -> int:
        return len(self.counts) - 1

    @property
    def rate(self) -> float:
        """Maximum-likelihood α of the truncated geometric law."""
        accepted = sum(tokens * rounds for tokens, rounds in enumerate(self.counts))
        return float(accepted / (accepted + sum(self.counts[:-1])))

    @property
    def by_depth(self) -> np.ndarray:
        """α_d [γ_max] for d from 1; NaN at depths that no round came to."""
        reached_G = np.cumsum(self.counts[::-1])[::-1]
        with np.errstate(invalid="ignore"):
            return reached_G[1:] / reached_G[:-1]

    def accepted_law(self, gamma: int, kind: str = "measured") -> np.ndarray:
        """Probabilities [gamma + 1] of 0 to ``gamma`` accepted tokens; ``kind`` is ``"measured"`` or ``"iid"``.

        Raises
        ------
        ValueError
            For another ``kind``, or a measured law beyond γ_max, where nothing was observed.
        """
        if kind == "iid":
            return iid_accepted_law(self.rate, gamma)
        if kind != "measured":
            raise ValueError(f"unknown kind of accepted law {kind!r}. Known kinds: measured, iid.")
        if gamma > self.gamma_max:
            raise ValueError(
                f"gamma={gamma} lies beyond the {self.gamma_max} tokens that were drafted. Use kind='iid', or collect with a "
                "longer draft."
            )
        return truncated_law(np.array(self.counts) / sum(self.counts), gamma)


def iid_accepted_law(alpha: float, gamma: int) -> np.ndarray:
    """Truncated geometric law [gamma + 1] of the accepted tokens of a chain of ``gamma``, each accepted with ``alpha``."""
    require_probability("alpha", alpha)
    require_at_least("gamma", gamma, 0)
    reached_G = alpha ** np.arange(gamma + 1)
    return np.append(reached_G[:-1] * (1 - alpha), reached_G[-1])


def truncated_law(accepted_law: Sequence[float] | np.ndarray, gamma: int) -> np.ndarray:
    """Law [gamma + 1] of min(accepted, ``gamma``): that of a shorter chain. ``accepted_law``: of ``gamma`` tokens or more."""
    law_G = np.asarray(accepted_law, dtype=np.float64)
    require_at_least("gamma", gamma, 0)
    if law_G.ndim != 1 or len(law_G) <= gamma:
        raise ValueError(
            f"an accepted law of shape {law_G.shape} does not reach gamma={gamma}: pass {gamma + 1} probabilities."
        )
    if not (law_G >= 0).all() or abs(law_G.sum() - 1) > SUM_TOLERANCE:
        raise ValueError(f"an accepted law must be >= 0 and sum to 1, got {law_G.tolist()}.")
    return np.append(law_G[:gamma], law_G[gamma:].sum())


def require_probability(name: str, value: float) -> None:
    """`ValueError` unless ``value`` is a probability."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}.")


def require_at_least(name: str, value: float, least: float) -> None:
    """`ValueError` if ``value`` is below ``least``."""
    if not value >= least:
        raise ValueError(f"{name} must be >= {least}, got {value}.")
