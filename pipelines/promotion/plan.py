"""The plan of a release, fixed before anything is measured: sections ``trial`` and ``promotion`` of the parameters.

share of look k = (test_prompts + (k - 1) reserve_prompts) / (test_prompts + (looks - 1) reserve_prompts)
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pipelines.parameters import load_parameters
from pipelines.promotion.bounds import Bounds
from predictors.config import Checked, Count, at_least, not_empty

ROUNDED = 0.005  # shares are written with two digits


@dataclass(frozen=True)
class TrialConfig(Checked):
    """Section ``trial``.

    Parameters
    ----------
    gammas
        Lengths of the static chains.
    test_prompts, reserve_prompts
        Timed at the first look, and new ones of the reserve at every further look.
    repeats, max_new_tokens, threads, seed
        Of every decode.
    exactness_prompts
        Greedy texts that are compared.
    max_minutes
        Ends early after a whole prompt, and records it.
    """

    gammas: Annotated[tuple[Count, ...], not_empty] = (2, 3, 4, 6, 8)
    test_prompts: Count = 60
    reserve_prompts: Count = 30
    repeats: Count = 1
    exactness_prompts: Count = 2
    max_new_tokens: Annotated[int, at_least(2)] = 48  # a prefill and a round
    threads: Count = 2
    seed: int = 0
    max_minutes: float | None = None

    def shares(self, looks: int) -> list[float]:
        """Of all prompts of a plan of so many looks, the share that each look has.

        Examples
        --------
        >>> TrialConfig().shares(3)
        [0.5, 0.75, 1.0]
        """
        counts = [self.test_prompts + look * self.reserve_prompts for look in range(looks)]
        return [count / counts[-1] for count in counts]


def load_plan(pair: str, path: Path) -> tuple[TrialConfig, Bounds]:
    """Both sections of a pair.

    Raises
    ------
    ValueError
        If the looks of ``promotion`` are not the shares that the prompts of ``trial`` make.
    """
    trial = load_parameters(TrialConfig, pair, "trial", path)
    bounds = load_parameters(Bounds, pair, "promotion", path)
    shares = trial.shares(len(bounds.looks))
    if not all(math.isclose(*both, abs_tol=ROUNDED) for both in zip(bounds.looks, shares, strict=True)):
        raise ValueError(
            f"{path}: pairs.{pair}.promotion.looks are {list(bounds.looks)}, and trial.test_prompts {trial.test_prompts} with "
            f"reserve_prompts {trial.reserve_prompts} make {[round(share, 3) for share in shares]}. Give looks these shares."
        )
    return trial, bounds
