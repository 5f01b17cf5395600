"""Predicted against measured tokens/s of the static settings: what a latency profile and rounds of longer drafts tell.

A static chain's distribution of the accepted length comes, by depth, from the rounds of all longer static drafts at its sampling
setting, cut at its own γ. (Shorter drafts begin their rounds elsewhere in the text.) The profile gives the time
(`predictors.latency.throughput`). Of what a chain was measured to do, only the lengths of its outputs enter its own prediction;
the longest draft's acceptance is its own.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipelines.measuring.names import PLAIN, chain_gamma
from pipelines.reporting.bars import apart
from pipelines.reporting.measured_folder import Measured
from predictors.latency import AcceptanceStatistics, LatencyProfile, generation_latency


class PredictionReport:
    """Builds the record from a measurement and the profile of the same machine."""

    def __init__(self, measured: Measured, profile: LatencyProfile) -> None:
        self.measured = measured
        self.profile = profile

    def build(self) -> dict[str, Any]:
        settings = [self._setting(at, arm) for at in self.measured.settings for arm in self._arms(at)]
        summary = _summary(settings)
        return {
            "settings": settings,
            "acceptance": {at: self._acceptance(at, self._arms(at)[1:]).rate for at in self.measured.settings},
            "apart": apart(summary["median_error"]),
            "summary": summary,
        }

    def _arms(self, setting: str) -> list[str]:
        """Plain decoding and the static chains, by length."""
        return [arm for arm in self.measured.arms(setting) if arm == PLAIN or chain_gamma(arm) is not None]

    def _acceptance(self, setting: str, arms: Sequence[str]) -> AcceptanceStatistics:
        """Of static drafts, in the rounds that nothing cut short."""
        runs = self.measured.counted
        runs = runs[runs["setting"] == setting]
        whole = [
            [row for row in runs[runs["arm"] == arm]["uncut_histogram"] if len(row) == _gamma(arm) + 1] for arm in arms
        ]
        return AcceptanceStatistics([np.sum(rows, axis=0).tolist() for rows in whole if rows])

    def _setting(self, setting: str, arm: str) -> dict[str, Any]:
        items = self.measured.test
        items = items[(items["arm"] == arm) & (items["setting"] == setting)]
        measured = float(items["tokens"].sum() / items["seconds"].sum())
        *_, longest = arms = self._arms(setting)
        longer = [other for other in arms if _gamma(other) > _gamma(arm)] or [longest]
        acceptance = self._acceptance(setting, longer)
        predicted = self._predicted(items, acceptance, _gamma(arm), not self.measured.greedy(setting))
        return {
            "setting": setting,
            "arm": arm,
            "measured": measured,
            "predicted": predicted,
            "error": predicted["value"] / measured - 1,
        }

    def _predicted(
        self, items: pd.DataFrame, acceptance: AcceptanceStatistics, gamma: int, sampled: bool
    ) -> dict[str, float]:
        """Tokens/s over the same prompts and output lengths."""
        law = acceptance.accepted_law(gamma)
        requests = Counter(zip(items["prompt_tokens"], items["tokens"], strict=True))
        seconds = np.zeros(3)
        for (prompt_tokens, tokens), count in requests.items():
            one = generation_latency(self.profile, law, gamma, int(prompt_tokens), int(tokens), sampled)
            seconds += count * tokens / np.array([one.tokens_per_second, one.low, one.high])
        value, low, high = items["tokens"].sum() / seconds
        return {"value": float(value), "low": float(low), "high": float(high)}


def _gamma(arm: str) -> int:
    return chain_gamma(arm) or 0


def _summary(settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Median relative error, of tokens/s and of the speed-up over plain decoding; rank correlation of predicted with measured
    tokens/s over all rows and by sampling setting. ``drift`` is plain decoding's own error: no acceptance enters there, so it is
    how much faster or slower the machine ran when it was profiled."""
    table = pd.DataFrame(
        {
            "setting": [row["setting"] for row in settings],
            "arm": [row["arm"] for row in settings],
            "measured": [row["measured"] for row in settings],
            "predicted": [row["predicted"]["value"] for row in settings],
        }
    )
    error = table["predicted"] / table["measured"] - 1
    plain = table["arm"] == PLAIN
    drift = table["setting"].map(dict(zip(table["setting"][plain], error[plain], strict=True)))
    speedup_error = ((1 + error) / (1 + drift) - 1)[~plain]
    by_setting = {str(setting): _spearman(part) for setting, part in table.groupby("setting")}
    return {
        "median_error": float(error.abs().median()),
        "largest_error": float(error.abs().max()),
        "median_signed_error": float(error.median()),
        "drift": float(error[plain].mean()),
        "median_speedup_error": float(speedup_error.abs().median()),
        "largest_speedup_error": float(speedup_error.abs().max()),
        "spearman": _spearman(table),
        "spearman_by_setting": by_setting,
    }


def _spearman(table: pd.DataFrame) -> float:
    return float(table["measured"].corr(table["predicted"], method="spearman"))
