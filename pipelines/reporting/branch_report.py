"""What drafting while the target verifies is worth, with 95 % intervals over documents; every comparison is paired by prompt.

    hits per branch point  = hits / branch points                  tested = points with all before them accepted / branch points
    rollback rate          = rolled back / levels                  trimmed share = trimmed / levels
    waste                  = (rolled back + trimmed) / levels      m_incl = 1 + accepted / segments
    rows wasted            = 1 - accepted / drafted tokens of all branches
    rollback less PEARL    = rollback rate - PEARL's rollback rate
    of prediction          = tokens/s / what the profile says for the same rounds (`pipelines.reporting.branch_prediction`)
    beside plain's         = that share / plain decoding's: a machine that is slower than when it was profiled is so for both
    target idle            = the target lane's waiting / its length, over rounds that follow a hit (steady branch stages)

Each way of drafting stands for the γ that was chosen on validation prompts. PEARL is compared on the same clock only.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd

from pipelines.measuring.names import CHAIN, PEARL, PLAIN
from pipelines.reporting.branch_folder import BranchArms
from pipelines.reporting.branch_prediction import predicted_seconds
from pipelines.reporting.paired_arms import PairedArms
from pipelines.reporting.statistics import Interval, PairedBootstrap, less_one
from predictors.latency import LatencyProfile

COUNTS = ("rounds", "levels", "emitted", "rolled_back", "trimmed", "hits", "branch_points", "bypassed")


class BranchReport:
    """Builds the records of ``quality.json`` (counts) and ``timing.json`` (times); ``None`` where no such arm was measured."""

    def __init__(self, branches: BranchArms, replicates: int, seed: int, profile: LatencyProfile | None = None) -> None:
        self.branches = branches
        self.profile = profile
        self.paired = PairedArms(branches.whole, replicates, seed)

    def quality(self) -> dict[str, Any] | None:
        """Counts of the rounds by temperature and arm, the best static draft first."""
        return self._by_temperature(self._counts)

    def timing(self) -> dict[str, Any] | None:
        """Speed by temperature and arm, plain decoding and the best static draft first."""
        return self._by_temperature(self._speeds)

    def _by_temperature(self, build: Callable[[float], dict[str, Any]]) -> dict[str, Any] | None:
        measured = [t for t in self.branches.whole.temperatures if self.branches.arms(t)]
        if not measured:
            return None
        static = {t: self.branches.whole.chosen(CHAIN, t) for t in measured}
        return {"temperatures": [{"temperature": t, "static": static[t], "arms": build(t)} for t in measured]}

    def _speeds(self, temperature: float) -> dict[str, Any]:
        arms = [PLAIN, self.branches.whole.chosen(CHAIN, temperature), *self.branches.arms(temperature)]
        return {arm: self._speed(arm, temperature) for arm in arms}

    def _speed(self, arm: str, temperature: float) -> dict[str, Any]:
        runs = self.branches.runs(arm, temperature)
        pearl = self._pearl(arm, temperature)
        return {
            "clock": self.branches.clock(arm, temperature),
            "tokens_per_second": self.paired.rate(arm, [temperature]),
            "speedup": self.paired.ratio(arm, PLAIN, [temperature]),
            "gain_over_best_static": less_one(self.paired.ratio(arm, CHAIN, [temperature])),
            "gain_over_pearl": None if pearl is None else less_one(self.paired.ratio(arm, pearl, [temperature])),
            "target_idle": self._bootstrap(runs).rate(runs["seconds_steady_wait"], runs["seconds_steady"]),
            **self._of_prediction(arm, temperature),
        }

    def _of_prediction(self, arm: str, temperature: float) -> dict[str, Interval | None]:
        """Of the profile of this machine; ``None`` without one that knows this way of running."""
        profile = self.profile
        if profile is None or not {"beside_target", "branch_candidates"} <= set(profile.tables):
            return {"of_prediction": None, "of_prediction_beside_plain": None}
        pair = self.paired.pair(arm, PLAIN, [temperature])
        if pair[0].empty:
            return {"of_prediction": None, "of_prediction_beside_plain": None}
        rates: list[Any] = []
        for runs in pair:
            rows = (run for _, run in runs.reset_index().iterrows())
            seconds = [predicted_seconds(run, self.branches.whole.rounds_of(run), profile) for run in rows]
            rates += [seconds, runs["seconds"]]
        bootstrap = self._bootstrap(pair[0])
        return {"of_prediction": bootstrap.rate(*rates[:2]), "of_prediction_beside_plain": bootstrap.rate_ratio(*rates)}

    def _counts(self, temperature: float) -> dict[str, Any]:
        arms = [self.branches.whole.chosen(CHAIN, temperature), *self.branches.arms(temperature)]
        return {arm: self._count(arm, temperature) for arm in arms}

    def _count(self, arm: str, temperature: float) -> dict[str, Any]:
        runs = self.branches.counted(arm, temperature)
        bootstrap = self._bootstrap(runs)
        m_excl = bootstrap.rate(runs["accepted"], runs["segments"])
        greedy = runs["equals_plain"].dropna()
        return {
            **{name: int(runs[name].sum()) for name in COUNTS},
            "rollback_rate": bootstrap.rate(runs["rolled_back"], runs["levels"]),
            "rollback_less_pearl": self._rollback_less_pearl(arm, temperature),
            "hits_per_branch_point": bootstrap.rate(runs["hits"], runs["branch_points"]),
            "tested": bootstrap.rate(runs["tested_points"], runs["branch_points"]),
            "block_efficiency": bootstrap.rate(runs["emitted"], runs["rounds"]),
            "m_incl": {name: None if value is None else value + 1 for name, value in m_excl.items()},
            "trimmed_share": bootstrap.rate(runs["trimmed"], runs["levels"]),
            "waste": bootstrap.rate(runs["rolled_back"] + runs["trimmed"], runs["levels"]),
            "rows_wasted": bootstrap.rate(runs["drafted"] - runs["accepted"], runs["drafted"]),
            "equals_plain": {"equal": int(greedy.sum()), "texts": len(greedy)} if len(greedy) else None,
        }

    def _rollback_less_pearl(self, arm: str, temperature: float) -> Interval | None:
        """Rollback rate less PEARL's on the same clock."""
        pearl = self._pearl(arm, temperature)
        if pearl is None:
            return None
        runs, others = (self.branches.counted(name, temperature) for name in (arm, pearl))
        shared = runs.index.intersection(others.index).sort_values()
        if shared.empty:
            return None
        runs, others = runs.loc[shared], others.loc[shared]
        rates = (runs["rolled_back"], runs["levels"], others["rolled_back"], others["levels"])
        return self._bootstrap(runs).rate_difference(*rates)

    def _pearl(self, arm: str, temperature: float) -> str | None:
        """PEARL's arm on the clock of ``arm``, unless that is it."""
        clock = self.branches.clock(arm, temperature)
        for name, parts in self.branches.arms(temperature).items():
            if parts.preset == PEARL and self.branches.clock(name, temperature) == clock:
                return None if name == arm else name
        return None

    def _bootstrap(self, rows: pd.DataFrame) -> PairedBootstrap:
        return self.paired.bootstrap(rows)
