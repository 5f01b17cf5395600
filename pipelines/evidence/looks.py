"""Looks at one challenger: how the total error is spent over them.

    spent(t) = α ln(1 + (e - 1) t)    at information t in (0, 1]; Pocock-type spending
    level of look k = spent(t_k) - spent(t_{k-1})
    P(any look passes, without any gain) <= Σ levels = spent(t_K) <= α    by the union bound

So nothing is asked of how looks depend on each other. They may share prompts, recorded texts and times, or prompts alone.

Sources: Lan and DeMets, Discrete sequential boundaries for clinical trials, Biometrika 70, 1983 (spending, and this function);
Bonferroni's inequality.
"""

import math
from itertools import pairwise


def spent(alpha: float, information: float) -> float:
    """Of the total one-sided error ``alpha``, what is spent by a share of the ``information``.

    Examples
    --------
    >>> round(spent(0.025, 0.5), 4), spent(0.025, 1.0)
    (0.0155, 0.025)
    """
    return alpha * math.log1p((math.e - 1) * min(information, 1.0))


def levels(alpha: float, information: tuple[float, ...]) -> tuple[float, ...]:
    """One-sided levels of the looks at increasing shares of ``information``.

    Raises
    ------
    ValueError
        Unless shares increase within (0, 1].

    Examples
    --------
    >>> [round(level, 4) for level in levels(0.025, (0.5, 0.75, 1.0))]
    [0.0155, 0.0052, 0.0043]
    """
    if (
        not information
        or list(information) != sorted(set(information))
        or not 0 < information[0] <= information[-1] <= 1
    ):
        raise ValueError(f"shares of information must increase within (0, 1], got {list(information)}.")
    return tuple(spent(alpha, here) - spent(alpha, before) for before, here in pairwise((0.0, *information)))
