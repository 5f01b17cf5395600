"""Arms of a measurement against each other; the only place where a report's ratios and their intervals are made.

    speed-up    (Σ tokens / Σ seconds of an arm) / (the same of another), over the blocks (prompt, setting, repeat) they share
    gain        its speed-up less one
    rate        Σ amount / Σ cost of one arm's decodes
    pace        tokens per second of plain decoding over all of its blocks, times the arm's speed-up there

Intervals are 95 %, by delete-one-document jackknife (`predictors.training.intervals`), of logarithms where a value is a ratio of
rates. Prompts of one document are not independent, so documents are left out. What shares no block is undefined. Sums weigh every
prompt alike. Shape suffixes: N items, D documents, K sums.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pipelines.measuring.names import CHAIN, FORK, HF_LOOKUP, METHODS, PLAIN
from pipelines.reporting.measured_folder import KEY, Measured
from pipelines.reporting.section import EFFICIENCY, OVER_CHAIN, SPEEDUP, Cell, Metric
from pipelines.reporting.text import UNDEFINED, Interval, alone, arm_name, changed, known
from predictors.rounds import PHASES
from predictors.training import intervals

PARTS = (*PHASES, "rest")  # of the time
RATES = {  # by the name of a column of the report: Σ of quantities of decodes over Σ of another
    EFFICIENCY: ("emitted", "rounds"),
    "drafted per round": ("levels", "rounds"),
    "rollback rate": ("rolled_back", "levels"),
    "deciding": ("seconds_controller", "seconds_rounds"),
    "upkeep": ("seconds_draft", "seconds_rounds"),
    "time verifying": ("seconds_verify", "seconds"),
    "target idle": ("seconds_steady_wait", "seconds_steady"),
    "hits per branch point": ("hits", "branch_points"),
    "tokens per pass": ("rounds+accepted", "rounds"),
    "passes with candidates": ("tried", "rounds"),
    "tokens of those": ("tried+accepted", "tried"),
    "guesses per pass": ("guessed", "rounds"),
    "candidates per pass": ("drafted", "rounds"),
    "guesses and candidates per pass": ("guessed+drafted", "rounds"),
    "ms/token": ("seconds", "tokens"),
    **{part: (f"seconds_{part}", "seconds") for part in PARTS},
}
WHOLE = {EFFICIENCY, "time verifying", *PARTS}  # shown with their intervals
RIVALS = {SPEEDUP: PLAIN, "over HF prompt lookup": HF_LOOKUP, **{f"over {name}": name for name in METHODS[1:]}}
GAINS = {OVER_CHAIN: CHAIN, "gain over best static fork": FORK}


@dataclass(frozen=True)
class By:
    """Which decodes: at a sampling ``setting`` (``None``: all), of a ``slice`` (``None``: all)."""

    setting: str | None = None
    slice: str | None = None


ALL = By()


class Comparison:
    """``measured`` with its arms compared. A family's name, where no arm has it, stands for the arm that was chosen of it at
    each sampling setting."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self._by_arm = {
            str(arm): rows.set_index(KEY).sort_index() for arm, rows in measured.test.groupby("arm", sort=False)
        }

    def rows(self, arm: str, by: By = ALL) -> pd.DataFrame:
        """Decodes of an arm, or of what was chosen of a family, by block in one order for all arms."""
        measured, parts = self.measured, []
        for setting in measured.settings if by.setting is None else [by.setting]:
            rows = self._by_arm.get(arm if arm in self._by_arm else measured.choices(setting).get(arm, arm))
            if rows is not None and setting in rows.index.get_level_values(0):
                parts.append(rows.loc[[setting]])
        rows = pd.concat(parts) if parts else measured.test.set_index(KEY).iloc[:0]
        return rows if by.slice is None else rows[rows["slice"] == by.slice]

    def pair(self, arm: str, over: str, by: By = ALL) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows of both on the blocks that they share."""
        rows, others = (self.rows(name, by) for name in (arm, over))
        return rows[rows.index.isin(others.index)], others[others.index.isin(rows.index)]

    def speedup(self, arm: str, over: str = PLAIN, by: By = ALL) -> Interval:
        """How many times as fast ``arm`` is as ``over``."""
        rows, others = self.pair(arm, over, by)
        return rate_ratio(rows["document"], rows["tokens"], rows["seconds"], others["tokens"], others["seconds"])

    def gain(self, arm: str, over: str = CHAIN, by: By = ALL) -> Interval:
        """Its speed-up over another, less one."""
        return changed(self.speedup(arm, over, by), lambda ratio: ratio - 1)

    def pace(self, arm: str, by: By = ALL) -> Interval:
        """Tokens per second, put to the pace of plain decoding on all prompts: an arm that was timed on some is not favoured by
        which ones these were."""
        speed = self.rate(PLAIN, "tokens", "seconds", by)["value"] or 0.0
        return changed(self.speedup(arm, PLAIN, by), lambda value: value * speed)

    def rate(self, arm: str, amount: str, cost: str, by: By = ALL) -> Interval:
        """Σ of quantities, joined by ``+``, over Σ of another."""
        rows = self.rows(arm, by)
        return rate(rows["document"], rows[amount.split("+")].sum(axis=1, skipna=False), rows[cost])

    def metric(self, name: str, arm: str, by: By = ALL) -> Cell:
        """A column of the report, by its name."""
        if name in RATES:
            made = self.rate(arm, *RATES[name], by)
            return made if name in WHOLE else made["value"]
        if name in GAINS:
            return self.gained(arm, GAINS[name], by)
        return None if arm == RIVALS[name] != PLAIN else self.speedup(arm, RIVALS[name], by)

    def gained(self, arm: str, over: str, by: By = ALL) -> Cell:
        """Its gain; nothing over itself."""
        same = self.rows(arm, by)["arm"].equals(self.rows(over, by)["arm"])
        return None if same else self.gain(arm, over, by)

    def metrics(self, *names: str, of: Container[str] | None = None) -> dict[str, Metric]:
        """Columns by name; nothing of arms outside ``of``."""

        def value(name: str, arm: str, by: By = ALL) -> Cell:
            return self.metric(name, arm, by) if of is None or arm in of else None

        return {name: partial(value, name) for name in names}

    def places(self, arms: Iterable[str], by: By = ALL) -> dict[str, tuple[str, By]]:
        """Rows of a table: arms by their names, each on these decodes."""
        return {arm_name(arm): (arm, by) for arm in arms}


def across(metric: Metric, parts: Mapping[str, By]) -> dict[str, Metric]:
    """A column for every part of the decodes."""
    return {label: partial(metric, by=by) for label, by in parts.items()}


def rate(documents: Iterable[str], amount: ArrayLike, cost: ArrayLike) -> Interval:
    """Σ amount / Σ cost."""
    return _of_rates(documents, (amount, cost), lambda made: made)


def rate_difference(documents: Iterable[str], *columns: ArrayLike) -> Interval:
    """Σ amount / Σ cost of an arm less the same of another, for shares, which may be 0."""
    return _of_rates(documents, columns, lambda one, other: one - other)


def rate_ratio(documents: Iterable[str], *columns: ArrayLike) -> Interval:
    """(Σ amount / Σ cost) of an arm over the same of another; by logarithms."""
    made = _of_rates(documents, columns, lambda one, other: np.log(one) - np.log(other))
    return changed(made, lambda value: float(np.exp(value)))


def share_between(documents: Iterable[str], *columns: ArrayLike) -> Interval:
    """(made - low) / (high - low), of rates whose amounts and costs are given in that order."""
    return _of_rates(documents, columns, lambda made, low, high: (made - low) / (high - low))


def _of_rates(documents: Iterable[str], columns: Sequence[ArrayLike], value: Callable[..., np.ndarray]) -> Interval:
    """``value`` of the rates whose amounts and costs ``columns`` give in turn."""
    return jackknife(documents, columns, lambda sums_DK: value(*(sums_DK[:, ::2] / sums_DK[:, 1::2]).T))


def jackknife(
    documents: Iterable[str], columns: Sequence[ArrayLike], value: Callable[[np.ndarray], np.ndarray]
) -> Interval:
    """``value`` of sums [..., K] of ``columns`` over items, with its interval; undefined where it is not finite. Of a single
    document there is no interval."""
    items_NK = np.stack([np.asarray(one, float) for one in columns], axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        made = intervals.jackknife(items_NK, np.asarray(list(documents)), value)
    if not np.isfinite(made["value"] or 0.0):
        return dict(UNDEFINED)
    return made if known(made) and np.isfinite(made["low"] or 0.0) else alone(made["value"])
