"""The plan of a release, fixed before anything is measured: sections ``trial`` and ``promotion`` of the parameters.

share of look k = (test_prompts + (k - 1) reserve_prompts) / (test_prompts + (looks - 1) reserve_prompts)
"""

import math
from dataclasses import dataclass
from pathlib import Path

from pipelines.parameters import load_parameters
from pipelines.promotion.bounds import Bounds

ROUNDED = 0.005  # shares are written with two digits


@dataclass(frozen=True)
class TrialConfig:
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

    gammas: tuple[int, ...] = (2, 3, 4, 6, 8)
    test_prompts: int = 60
    reserve_prompts: int = 30
    repeats: int = 1
    exactness_prompts: int = 2
    max_new_tokens: int = 48
    threads: int = 2
    seed: int = 0
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        if not self.gammas or min(self.gammas) < 1:
            raise ValueError(
                f"gammas must name at least one static chain, of 1 token or more, got {list(self.gammas)}."
            )
        for name in ("test_prompts", "reserve_prompts", "repeats", "exactness_prompts", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if self.max_new_tokens < 2:
            raise ValueError(f"max_new_tokens must be >= 2, a prefill and a round, got {self.max_new_tokens}.")

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
