"""``quality.json``: deterministic counts of the measured rounds (`pipelines.reporting.paired_arms`)."""

from typing import Any

import numpy as np
import pandas as pd

from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.paired_arms import PairedArms, equal_texts

COUNTED = ("rounds", "drafted", "levels", "accepted", "emitted", "rolled_back", "segments")


class QualityReport:
    """Builds the record of a measurement."""

    def __init__(self, measured: Measured, replicates: int, seed: int) -> None:
        self.measured = measured
        self.arms = PairedArms(measured, replicates, seed)

    def build(self) -> dict[str, Any]:
        """Counts by sampling setting and by slice, greedy texts equal to plain decoding's, and exactness in float32."""
        runs = self.measured.counted
        counted = runs[runs["rounds"].notna()]
        drafting = counted[counted.groupby("arm")["drafted"].transform("sum") > 0]
        return {
            "settings": [
                {"setting": setting, "greedy": self.measured.greedy(setting)}
                | {"arms": self._arms(counted[counted["setting"] == setting])}
                for setting in self.measured.settings
            ],
            "slices": {str(name): self._arms(part) for name, part in drafting.groupby("slice")},
            "equals_plain": {str(arm): made for arm, rows in runs.groupby("arm") if (made := equal_texts(rows))},
            "exactness": self.measured.findings["exactness"],
        }

    def _arms(self, runs: pd.DataFrame) -> dict[str, Any]:
        by_arm = {str(arm): rows for arm, rows in runs.groupby("arm")}
        return {arm: self._counts(by_arm[arm]) for arm in self.measured.families if arm in by_arm}

    def _counts(self, runs: pd.DataFrame) -> dict[str, Any]:
        histogram = _total_histogram(runs["accepted_histogram"])
        counts = {name: int(runs[name].sum()) for name in COUNTED}
        return counts | self.arms.counts(runs) | {"accepted_histogram": histogram}


def _total_histogram(histograms: pd.Series) -> list[int]:
    longest = max(map(len, histograms))
    total = np.sum([np.pad(counts, (0, longest - len(counts))) for counts in histograms], axis=0)
    return [int(count) for count in total]
