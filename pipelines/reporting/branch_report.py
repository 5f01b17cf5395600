"""What drafting while the target verifies is worth, with 95 % intervals over documents; every comparison is paired by prompt.

    hits per branch point  = hits / branch points                  tested = points with all before them accepted / branch points
    rollback rate          = rolled back / levels                  trimmed share = trimmed / levels
    waste                  = (rolled back + trimmed) / levels      m_incl = 1 + accepted / segments
    rows wasted            = 1 - accepted / drafted tokens of all branches
    rollback less PEARL    = rollback rate - PEARL's rollback rate
    of prediction          = tokens/s / what the profile says for the same rounds (`pipelines.reporting.branch_prediction`)
    without the drift      = that share / plain decoding's: a machine that is slower than when it was profiled is so for both
    target idle            = the target lane's waiting / its length, over rounds that follow a hit (steady branch stages)

Each way of drafting stands for the γ that was chosen on validation prompts. PEARL is compared on the same clock only.
"""

from collections.abc import Callable
from typing import Any, Self

from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, PEARL, PLAIN
from pipelines.reporting.branch_folder import BranchArms
from pipelines.reporting.branch_plots import branch_speeds
from pipelines.reporting.branch_prediction import predicted_seconds
from pipelines.reporting.inputs import Inputs, Section
from pipelines.reporting.paired_arms import PairedArms, equal_texts
from pipelines.reporting.statistics import Interval
from predictors.latency import LatencyProfile

COUNTS = ("rounds", "levels", "emitted", "rolled_back", "trimmed", "hits", "branch_points", "bypassed")
SHARES = {  # of rounds: amount and cost
    "hits_per_branch_point": ("hits", "branch_points"),
    "tested": ("tested_points", "branch_points"),
    "trimmed_share": ("trimmed", "levels"),
    "waste": ("wasted", "levels"),
    "rows_wasted": ("unused", "drafted"),
}
NEEDED = {"beside_target", "branch_candidates"}  # tables of the profile


class BranchReport(Section):
    """Builds the records of ``quality.json`` (counts) and ``timing.json`` (times)."""

    def __init__(self, branches: BranchArms, replicates: int, seed: int, profile: LatencyProfile | None = None) -> None:
        self.branches = branches
        self.profile = profile
        self.paired = PairedArms(branches.whole, replicates, seed)
        self.settings = [setting for setting in branches.whole.settings if branches.arms(setting)]

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        """``None`` where no arm of these was timed."""
        report = cls(BranchArms(inputs.measured), *inputs.drawn, inputs.profile)
        return report if report.settings else None

    def figures(self, quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        """Tokens per second of every arm."""
        return {"branches": branch_speeds(timing)}

    def quality(self) -> dict[str, Any]:
        """Counts of the rounds by sampling setting and arm, the best static draft first."""
        return self._by_setting((), self._count)

    def timing(self) -> dict[str, Any]:
        """Speed by sampling setting and arm, plain decoding and the best static draft first."""
        return self._by_setting((PLAIN,), self._speed)

    def _by_setting(self, first: tuple[str, ...], build: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
        rows = []
        for setting in self.settings:
            static = self.branches.whole.chosen(CHAIN, setting)
            arms = {arm: build(arm, setting) for arm in (*first, static, *self.branches.arms(setting))}
            rows.append({"setting": setting, "static": static, "arms": arms})
        return {"settings": rows}

    def _speed(self, arm: str, setting: str) -> dict[str, Any]:
        pearl = self._pearl(arm, setting)
        return {
            "clock": self.branches.clock(arm, setting),
            **self.paired.speed(arm, [setting]),
            "gain_over_pearl": None if pearl is None else self.paired.gain(arm, pearl, [setting]),
            "target_idle": self.paired.of(self.paired.rows(arm, [setting]), "seconds_steady_wait", "seconds_steady"),
            **self._of_prediction(arm, setting),
        }

    def _of_prediction(self, arm: str, setting: str) -> dict[str, Interval | None]:
        """Of the profile of this machine; ``None`` without one that knows this way of running."""
        profile = self.profile
        pair = self.paired.pair(arm, PLAIN, [setting])
        if profile is None or not set(profile.tables) >= NEEDED or pair[0].empty:
            return {"of_prediction": None, "of_prediction_beside_plain": None}
        rates: list[Any] = []
        for runs in pair:
            rows = (run for _, run in runs.reset_index().iterrows())
            seconds = [predicted_seconds(run, self.branches.whole.rounds_of(run), profile) for run in rows]
            rates += [seconds, runs["seconds"]]
        bootstrap = self.paired.bootstrap(pair[0])
        return {"of_prediction": bootstrap.rate(*rates[:2]), "of_prediction_beside_plain": bootstrap.rate_ratio(*rates)}

    def _count(self, arm: str, setting: str) -> dict[str, Any]:
        runs = self.branches.counted(arm, setting)
        runs = runs.assign(wasted=runs["rolled_back"] + runs["trimmed"], unused=runs["drafted"] - runs["accepted"])
        return {
            **{name: int(runs[name].sum()) for name in COUNTS},
            **self.paired.counts(runs),
            **{name: self.paired.of(runs, *rate) for name, rate in SHARES.items()},
            "rollback_less_pearl": self._rollback_less_pearl(arm, setting),
            "equals_plain": equal_texts(runs),
        }

    def _rollback_less_pearl(self, arm: str, setting: str) -> Interval | None:
        """Rollback rate less PEARL's on the same clock."""
        pearl = self._pearl(arm, setting)
        if pearl is None:
            return None
        runs, others = (self.branches.counted(name, setting) for name in (arm, pearl))
        shared = runs.index.intersection(others.index).sort_values()
        if shared.empty:
            return None
        runs, others = runs.loc[shared], others.loc[shared]
        rates = (runs["rolled_back"], runs["levels"], others["rolled_back"], others["levels"])
        return self.paired.bootstrap(runs).rate_difference(*rates)

    def _pearl(self, arm: str, setting: str) -> str | None:
        """PEARL's arm on the clock of ``arm``, unless that is it."""
        clock = self.branches.clock(arm, setting)
        for name, parts in self.branches.arms(setting).items():
            if parts.preset == PEARL and self.branches.clock(name, setting) == clock:
                return None if name == arm else name
        return None
