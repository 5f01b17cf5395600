"""Arms of a measurement against each other; the only place where a report's ratios and their intervals are made.

    speed-up    (Σ tokens / Σ seconds of an arm) / (the same of another), over the blocks (prompt, setting, repeat) they share
    gain        its speed-up less one
    rate        Σ amount / Σ cost of one arm's decodes

    block efficiency = emitted / target passes      m_incl = 1 + accepted / segments, of which each ends at a rollback
    rollback rate = rolled back / levels            deciding = seconds of the rule / seconds of the rounds
    target idle = waiting / time, after a hit       upkeep = seconds for candidates, guesses and pool / seconds of the rounds

Intervals are 95 %, by delete-one-document jackknife (`predictors.training.intervals`), of logarithms where a value is a ratio of
rates. What shares no block is undefined. Shape suffixes: D documents, K sums.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pipelines.measuring import names
from pipelines.measuring.gain import setting_of
from pipelines.measuring.names import CHAIN, HF_LOOKUP, HUGGING_FACE, PLAIN, PLAIN_FAMILY
from pipelines.report.section import UNDEFINED, Interval, Table, Unit, arm_name, changed, frame
from predictors.rounds import PHASES
from predictors.sampling import SAMPLING
from predictors.training import intervals

SPEEDUP, OVER_CHAIN, EFFICIENCY = "speed-up over plain", "gain over best static chain", "block efficiency"
KEY = ["setting", "prompt", "repeat"]  # of a block of one split
FIRST = (PLAIN, PLAIN_FAMILY, HUGGING_FACE, CHAIN)  # families that are shown before others
PARTS = (*PHASES, "rest")  # of the time
RATES = {  # by the name of a column of the report: Σ of quantities of decodes over Σ of another
    "tokens/s": ("tokens", "seconds"),
    EFFICIENCY: ("emitted", "rounds"),
    "m_incl": ("segments+accepted", "segments"),
    "drafted per round": ("levels", "rounds"),
    "rollback rate": ("rolled_back", "levels"),
    "deciding": ("seconds_controller", "seconds_rounds"),
    "upkeep": ("seconds_draft", "seconds_rounds"),
    "target idle": ("seconds_steady_wait", "seconds_steady"),
    "hits per branch point": ("hits", "branch_points"),
    "tokens per pass": ("rounds+accepted", "rounds"),
    "passes with candidates": ("tried", "rounds"),
    "guesses and candidates per pass": ("guessed+drafted", "rounds"),
    "ms/token": ("seconds", "tokens"),
    **{part: (f"seconds_{part}", "seconds") for part in PARTS},
}
SAME = "same text"
RIVALS = {SPEEDUP: PLAIN, OVER_CHAIN: CHAIN, "over HF prompt lookup": HF_LOOKUP}


class By(NamedTuple):
    """A choice of decodes: at a sampling ``setting`` (``None``: all), of a ``slice`` (``None``: all)."""

    setting: str | None = None
    slice: str | None = None


ALL = By()


@dataclass(frozen=True)
class TimedArms:
    """``decodes`` of test and validation prompts, and ``findings`` with the ``choices`` that validation prompts made: an arm by
    family and sampling setting. A family's name, where no arm has it, stands for its arm at each setting."""

    decodes: pd.DataFrame
    findings: dict[str, Any]

    @cached_property
    def test(self) -> pd.DataFrame:
        """Decodes of test prompts, each with the name of its sampling ``setting``."""
        rows = self.decodes[self.decodes["split"] == names.TEST].reset_index(drop=True)
        if "setting" in rows:
            return rows
        sampled = rows[[*SAMPLING]].itertuples(index=False, name=None)
        return rows.assign(setting=[setting_of(dict(zip(SAMPLING, one, strict=True))) for one in sampled])

    @cached_property
    def settings(self) -> list[str]:
        """Names of the sampling settings, by temperature."""
        return sorted(self.test["setting"].unique())

    @cached_property
    def slices(self) -> list[str]:
        """Slices of the test prompts, by name."""
        return sorted(self.test["slice"].unique())

    @cached_property
    def families(self) -> dict[str, str]:
        """The family of every arm that was timed on test prompts, in the order arms are shown."""
        arms = self.test[["arm", "family"]].drop_duplicates()
        return dict(sorted(arms.itertuples(index=False, name=None), key=_place))

    def arms(self, setting: str) -> list[str]:
        """Arms that were timed at a sampling setting, in the order they are shown."""
        timed = set(self.test.loc[self.test["setting"] == setting, "arm"])
        return [arm for arm in self.families if arm in timed]

    def choices(self, setting: str) -> dict[str, str]:
        """Return by family the arm that was fastest on validation prompts."""
        return {one["family"]: one["arm"] for one in self.findings["choices"] if setting_of(one) == setting}

    def chosen(self, family: str, setting: str) -> str:
        """The arm of ``family`` that was fastest on validation prompts."""
        choices = self.choices(setting)
        if family not in choices:
            raise ValueError(f"no arm of family {family!r} was chosen at {setting}. Run the measure stage again.")
        return choices[family]

    def standing(self, setting: str) -> list[str]:
        """Arms that stand for their family: those chosen on validation prompts, and all where there was no choice."""
        chosen = self.choices(setting)
        return [arm for arm in self.arms(setting) if chosen.get(self.families[arm], arm) == arm]

    @cached_property
    def _by_arm(self) -> dict[str, pd.DataFrame]:
        return {str(arm): rows.set_index(KEY).sort_index() for arm, rows in self.test.groupby("arm", sort=False)}

    def rows(self, arm: str, by: By = ALL) -> pd.DataFrame:
        """Decodes of an arm, or of what was chosen of a family, by block in one order for all arms."""
        parts = []
        for setting in self.settings if by.setting is None else [by.setting]:
            rows = self._by_arm.get(arm if arm in self._by_arm else self.choices(setting).get(arm, arm))
            if rows is not None and setting in rows.index.get_level_values(0):
                parts.append(rows.loc[[setting]])
        rows = pd.concat(parts) if parts else self.test.set_index(KEY).iloc[:0]
        return rows if by.slice is None else rows[rows["slice"] == by.slice]

    def pair(self, arm: str, over: str, by: By = ALL) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows of both on the blocks that they share."""
        rows, others = (self.rows(name, by) for name in (arm, over))
        return rows[rows.index.isin(others.index)], others[others.index.isin(rows.index)]

    def speedup(self, arm: str, over: str = PLAIN, by: By = ALL) -> Interval:
        """Speed-up: how many times as fast ``arm`` is as ``over``."""
        rows, others = self.pair(arm, over, by)
        return rate_ratio(rows["document"], rows["tokens"], rows["seconds"], others["tokens"], others["seconds"])

    def gain(self, arm: str, over: str = CHAIN, by: By = ALL) -> Interval:
        """Gain of ``arm``: its speed-up over another, less one."""
        return changed(self.speedup(arm, over, by), lambda ratio: ratio - 1)

    def rate(self, arm: str, amount: str, cost: str, by: By = ALL) -> Interval:
        """Σ of quantities, joined by ``+``, over Σ of another."""
        rows = self.rows(arm, by)
        return rate(rows["document"], rows[amount.split("+")].sum(axis=1, skipna=False), rows[cost])

    def metric(self, name: str, arm: str, by: By = ALL) -> Any:
        """A column of the report, by its name; no gain over itself."""
        if name == SAME:
            equal = self.rows(arm, by)["equals_plain"].dropna()
            return f"{int(equal.sum())}/{len(equal)}" if len(equal) else None
        if name in RATES:
            made = self.rate(arm, *RATES[name], by)
            return made if name == EFFICIENCY else made["value"]
        rival = RIVALS[name]
        if rival != PLAIN and self.rows(arm, by)["arm"].equals(self.rows(rival, by)["arm"]):
            return None
        return self.gain(arm, rival, by) if name.startswith("gain") else self.speedup(arm, rival, by)

    def table(self, arms: Iterable[str], columns: Sequence[str], by: By, name: str = "", **options: Any) -> Table:
        """Columns of arms, by their names, on the same decodes."""
        rows = [{"arm": arm_name(arm)} | {column: self.metric(column, arm, by) for column in columns} for arm in arms]
        return Table(name or str(by.setting), frame(rows), **options)

    def by_slice(self, column: str, arms: Iterable[str], name: str, setting: str | None = None) -> Table:
        """A gain or speed-up of arms on every slice."""
        rows = [
            {"arm": arm_name(arm)} | {part: self.metric(column, arm, By(setting, part)) for part in self.slices}
            for arm in arms
        ]
        return Table(name, frame(rows), unit=Unit.GAIN if column.startswith("gain") else Unit.TIMES)


def _place(arm: tuple[str, str]) -> tuple[Any, ...]:
    """Family by family, numbers in names by size."""
    name, family = arm
    parts = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    return FIRST.index(family) if family in FIRST else len(FIRST), family, parts


def rate(documents: Iterable[str], amount: ArrayLike, cost: ArrayLike) -> Interval:
    """Σ amount / Σ cost."""
    return of_rates(documents, (amount, cost), lambda made: made)


def rate_ratio(documents: Iterable[str], *columns: ArrayLike) -> Interval:
    """(Σ amount / Σ cost) of an arm over the same of another; by logarithms."""
    made = of_rates(documents, columns, lambda one, other: np.log(one) - np.log(other))
    return changed(made, lambda value: float(np.exp(value)))


def of_rates(documents: Iterable[str], columns: Sequence[ArrayLike], value: Callable[..., np.ndarray]) -> Interval:
    """``value`` of rates Σ amount / Σ cost over items, whose amounts and costs ``columns`` give in turn, with its interval;
    undefined where it is not finite. Of a single document there is no interval."""

    def of_sums(sums_DK: np.ndarray) -> np.ndarray:
        return value(*(sums_DK[:, ::2] / sums_DK[:, 1::2]).T)

    items = np.stack([np.asarray(one, float) for one in columns], axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        made = intervals.jackknife(items, np.asarray(list(documents)), of_sums)
    if not np.isfinite(made["value"] or 0.0):
        return UNDEFINED
    low = made["low"]
    return made if low is not None and np.isfinite(low) else UNDEFINED | {"value": made["value"]}
