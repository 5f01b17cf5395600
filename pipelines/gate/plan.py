"""The plan of a release, fixed before anything is measured: sections ``trial`` and ``promotion`` of the parameters.

    share of look k = (test_prompts + (k - 1) reserve_prompts) / (test_prompts + (looks - 1) reserve_prompts)

The total error is spent over the looks at one challenger:

    spent(t) = α ln(1 + (e - 1) t)    at a share t in (0, 1] of the information; Pocock-type spending
    level of look k = spent(t_k) - spent(t_{k-1})
    P(any look passes, without any gain) <= Σ levels = spent(t_K) <= α    by the union bound

Looks may share prompts, texts and times. A look counts once it was measured: of many measurements of one look one would pass by
chance. Looks that were taken are the gate's records on a version (`Champions.verdicts`).

Sources: Lan and DeMets, Discrete sequential boundaries for clinical trials, Biometrika 70, 1983 (spending, and this function);
Bonferroni's inequality.
"""

import json
import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pipelines.gate.verdict import EXHAUSTED, REFUSED
from pipelines.parameters import load_parameters
from predictors.config import Checked, Count, NotNegative, Positive, above, at_least, below, not_empty

Record = dict[str, Any]
ROUNDED = 0.005  # shares are written with two digits


@dataclass(frozen=True)
class TrialConfig(Checked):
    """Section ``trial``."""

    gammas: Annotated[tuple[Count, ...], not_empty] = (2, 3, 4, 6, 8)  # lengths of the static chains
    test_prompts: Count = 60  # timed at the first look
    reserve_prompts: Count = 30  # new ones, at every further look
    repeats: Count = 1
    exactness_prompts: Count = 2  # whose greedy texts are compared
    max_new_tokens: Annotated[int, at_least(2)] = 48  # a prefill and a round
    threads: Count = 2
    seed: int = 0
    max_minutes: float | None = None  # ends early after a whole prompt, and records it

    def shares(self, looks: int) -> list[float]:
        """Of all prompts of a plan of so many looks, the share that each look has.

        Examples
        --------
        >>> TrialConfig().shares(3)
        [0.5, 0.75, 1.0]
        """
        counts = [self.test_prompts + look * self.reserve_prompts for look in range(looks)]
        return [count / counts[-1] for count in counts]


@dataclass(frozen=True)
class Bounds(Checked):
    """Section ``promotion``: what the gate asks."""

    margin: NotNegative = 0.0  # a gain's lower bound must lie above it, over every rival
    alpha: Annotated[float, above(0), below(0.5)] = 0.025  # total one-sided error of all looks at a challenger
    looks: tuple[float, ...] = (0.5, 0.75, 1.0)  # planned, each by the share of all planned prompts that it has
    promised: float = 0.05  # the true gain that the gate promises to pass, and in which share of cases
    power: Annotated[float, at_least(0.5), below(1)] = 0.8
    guardrail: NotNegative = 0.05  # the most that a sampling setting or a slice may lose
    slice_documents: Annotated[int, at_least(2)] = 8  # a slice with fewer timed documents is not judged
    slice_spread: Positive = 0.05  # by how much true gains of slices differ (scale of the prior)
    calibration_error: NotNegative = 0.08  # the largest that passes
    min_documents: Count = 8  # below which nothing passes

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.promised > self.margin:
            raise ValueError(f"promised must lie above margin ({self.margin}), got {self.promised}.")
        levels(self.alpha, self.looks)

    def level(self, look: int) -> float | None:
        """One-sided level of a look (from 1); ``None`` after the last planned one."""
        return levels(self.alpha, self.looks)[look - 1] if look <= len(self.looks) else None


def spent(alpha: float, information: float) -> float:
    """Of the total one-sided error ``alpha``, what is spent by a share of the ``information``.

    Examples
    --------
    >>> round(spent(0.025, 0.5), 4), spent(0.025, 1.0)
    (0.0155, 0.025)
    """
    return alpha * math.log1p((math.e - 1) * min(information, 1.0))


def levels(alpha: float, information: tuple[float, ...]) -> tuple[float, ...]:
    """One-sided levels of the looks at increasing shares of ``information``. `ValueError` unless shares increase within (0, 1].

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
        raise ValueError(f"looks: shares of information must increase within (0, 1], got {list(information)}.")
    return tuple(spent(alpha, here) - spent(alpha, before) for before, here in pairwise((0.0, *information)))


def load_plan(pair: str, path: Path) -> tuple[TrialConfig, Bounds]:
    """Both sections of a pair. `ValueError` if ``promotion.looks`` are not the shares that ``trial`` makes."""
    trial = load_parameters(TrialConfig, pair, "trial", path)
    bounds = load_parameters(Bounds, pair, "promotion", path)
    shares = trial.shares(len(bounds.looks))
    if not all(math.isclose(*both, abs_tol=ROUNDED) for both in zip(bounds.looks, shares, strict=True)):
        raise ValueError(
            f"{path}: pairs.{pair}.promotion.looks are {list(bounds.looks)}, and trial.test_prompts {trial.test_prompts} with "
            f"reserve_prompts {trial.reserve_prompts} make {[round(share, 3) for share in shares]}. Give looks these shares."
        )
    return trial, bounds


def looks_among(records: list[Record]) -> list[Record]:
    """Records for which something was measured."""
    return [record for record in records if record["smallest_gain"] is not None]


def next_look(earlier: list[Record], name: str, version: str, planned: int) -> int:
    """The number of the next look after the kept verdicts. `ValueError` after a refusal and after the last ``planned`` one."""
    looks = looks_among(earlier)
    if looks and looks[-1]["verdict"] == REFUSED:
        raise ValueError(
            f"{name} version {version} was refused at look {looks[-1]['look']}, and more looks would not change what is "
            "known. Register another bundle, or promote this one with --force."
        )
    number = max((int(record["look"]) for record in looks), default=0) + 1
    if number > planned:
        raise ValueError(
            f"{EXHAUSTED}: the plan has no further look at {name} version {version}, all {planned} were taken. Register another "
            "bundle, or promote this one with --force."
        )
    return number


def require_new(record: Record, earlier: list[Record]) -> None:
    """`ValueError` for a second measurement of a look that was taken: only the first one counts."""
    for kept in looks_among(earlier):
        if kept["look"] >= record["look"] and kept["evidence_sha256"] != record["evidence_sha256"]:
            raise ValueError(
                f"look {record['look']} was taken already, by other evidence. Of many measurements one passes by chance: "
                "measure the next look (leave --evidence out)."
            )


def require_same_bounds(bounds: Bounds, earlier: list[Record]) -> None:
    """`ValueError` if an earlier look was judged by other bounds."""
    here = json.loads(json.dumps(asdict(bounds)))
    for kept in looks_among(earlier):
        for key, value in kept["bounds"].items():
            if here.get(key) != value:
                raise ValueError(
                    f"promotion.{key} was {value} at look {kept['look']}, and is {here.get(key)} now: bounds are fixed before "
                    "anything is measured. Put it back, register another bundle, or say --force."
                )
