"""Looks at one challenger: how the total error is spent over them.

    spent(t) = α ln(1 + (e - 1) t)    at information t in (0, 1]; Pocock-type spending

At look k the gate asks for a one-sided level a_k such that, without any gain, P(first pass at look k) is
spent(t_k) - spent(t_{k-1}). Statistics of looks that accumulate documents are jointly normal with correlation sqrt(t_j / t_k);
the boundary follows by recursive integration. A level is asked of a t statistic as it would be of a normal one.

Sources: Lan and DeMets, Discrete sequential boundaries for clinical trials, Biometrika 70, 1983 (spending, and this function);
Armitage, McPherson and Rowe, Journal of the Royal Statistical Society A 132, 1969 (recursion); Jennison and Turnbull, Group
Sequential Methods, 2000, section 3.8 (t statistics).
"""

import math
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

NODES = 400
FAR = 9.0  # deviations beyond which no mass counts


def spent(alpha: float, information: float) -> float:
    """Of the total one-sided error ``alpha``, what is spent by a share of the ``information``.

    Examples
    --------
    >>> round(spent(0.025, 0.5), 4), spent(0.025, 1.0)
    (0.0155, 0.025)
    """
    return alpha * math.log1p((math.e - 1) * min(information, 1.0))


@cache
def levels(alpha: float, information: tuple[float, ...]) -> tuple[float, ...]:
    """One-sided levels of the looks at increasing shares of ``information``.

    Raises
    ------
    ValueError
        Unless shares increase within (0, 1].
    """
    if (
        not information
        or list(information) != sorted(set(information))
        or not 0 < information[0] <= information[-1] <= 1
    ):
        raise ValueError(f"shares of information must increase within (0, 1], got {list(information)}.")
    found: list[float] = []
    before = 0.0
    points_N, mass_N = np.zeros(1), np.ones(1)  # where the sum of increments is, without a pass so far
    for share in information:
        wanted = spent(alpha, share) - spent(alpha, before)
        deviation = math.sqrt(share - before)
        edge = _edge(points_N, mass_N, deviation, wanted)
        found.append(float(norm.sf(edge / math.sqrt(share))))
        points_N, mass_N = _moved(points_N, mass_N, deviation, edge, share)
        before = share
    return tuple(found)


def _edge(points_N: np.ndarray, mass_N: np.ndarray, deviation: float, wanted: float) -> float:
    """The height above which mass ``wanted`` of the next sums lies."""

    def beyond(edge: float) -> float:
        return float((mass_N * norm.sf((edge - points_N) / deviation)).sum()) - wanted

    return float(brentq(beyond, 0.0, FAR, xtol=1e-12))


def _moved(
    points_N: np.ndarray, mass_N: np.ndarray, deviation: float, edge: float, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """The next sums below ``edge`` by Gauss-Legendre nodes with their mass."""
    nodes_N, weights_N = np.polynomial.legendre.leggauss(NODES)
    low = -FAR * math.sqrt(share)
    next_N = low + (edge - low) * (nodes_N + 1) / 2
    density_N = norm.pdf((next_N[:, None] - points_N) / deviation) @ mass_N / deviation
    return next_N, density_N * weights_N * (edge - low) / 2
