"""``quality.json``: deterministic counts of the measured rounds, and how good the predictors are.

block efficiency  = emitted / target passes            m_excl = accepted / segments,  m_incl = m_excl + 1
rollback rate     = rolled back / levels               round 0, the prefill, is outside
"""

from typing import Any

import numpy as np
import pandas as pd

from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.statistics import PairedBootstrap

COUNTED = ("rounds", "drafted", "levels", "accepted", "emitted", "rolled_back", "segments")
PREDICTOR_METRICS = ("macro_auc", "macro_auc_interval", "accuracy", "macro_f1", "ece", "brier", "nll")


class QualityReport:
    """Builds the record from a measurement, calibration records by predictor, and label counts."""

    def __init__(self, measured: Measured, replicates: int, seed: int) -> None:
        self.measured = measured
        self.replicates = replicates
        self.seed = seed

    def build(self, calibration: dict[str, dict[str, Any]], labels: dict[str, Any]) -> dict[str, Any]:
        runs = self.measured.counted
        counted = runs[runs["rounds"].notna()]
        drafting = counted[counted.groupby("arm")["drafted"].transform("sum") > 0]
        return {
            "temperatures": [
                {"temperature": t, "arms": self._arms(counted[counted["temperature"] == t])}
                for t in self.measured.temperatures
            ],
            "slices": {str(name): self._arms(part) for name, part in drafting.groupby("slice")},
            "equals_plain": self._equal_texts(),
            "exactness": self.measured.findings["exactness"],
            "predictors": {name: predictor_quality(record) for name, record in calibration.items()},
            "labels": labels,
        }

    def _arms(self, runs: pd.DataFrame) -> dict[str, Any]:
        timed = [arm for arm in self.measured.families if arm in set(runs["arm"])]
        return {arm: self._counts(runs[runs["arm"] == arm]) for arm in timed}

    def _counts(self, runs: pd.DataFrame) -> dict[str, Any]:
        bootstrap = PairedBootstrap(runs["document"].tolist(), self.replicates, self.seed)
        m_excl = bootstrap.rate(runs["accepted"], runs["segments"])
        return {
            **{name: int(runs[name].sum()) for name in COUNTED},
            "block_efficiency": bootstrap.rate(runs["emitted"], runs["rounds"]),
            "m_excl": m_excl,
            "m_incl": {name: None if value is None else value + 1 for name, value in m_excl.items()},
            "rollback_rate": bootstrap.rate(runs["rolled_back"], runs["levels"]),
            "drafted_per_round": bootstrap.rate(runs["drafted"], runs["rounds"]),
            "accepted_histogram": _total_histogram(runs["accepted_histogram"]),
        }

    def _equal_texts(self) -> dict[str, dict[str, int]]:
        """Greedy texts equal to plain decoding's, by arm. In bfloat16 near-ties flip between pass widths; see ``exactness``."""
        runs = self.measured.counted
        greedy = runs[runs["equals_plain"].notna()]
        grouped = greedy.groupby("arm")["equals_plain"]
        return {str(arm): {"equal": int(flags.sum()), "texts": len(flags)} for arm, flags in grouped}


def predictor_quality(record: dict[str, Any]) -> dict[str, Any]:
    """The figures of a calibration record that the report shows: the head's and its baselines' on test rows."""
    test = record["test"]
    return {
        "target": record["target"],
        "feature_set": record["feature_set"],
        "gamma": record["gamma"],
        "sampling_temperature": record["sampling_temperature"],
        "rows": record["rows"],
        "documents": record["documents"],
        "class_shares": record["class_shares"],
        "draft_cost": record["draft_cost"],
        "metrics": {
            name: {key: values.get(key) for key in (*PREDICTOR_METRICS, "confusion", "reliability")}
            for name, values in test["metrics"].items()
        },
        "decision": test["decision"],
        "gain_over_best_static": test["gain_over_best_static"],
    }


def _total_histogram(histograms: pd.Series) -> list[int]:
    longest = max(map(len, histograms))
    total = np.sum([np.pad(counts, (0, longest - len(counts))) for counts in histograms], axis=0)
    return [int(count) for count in total]
