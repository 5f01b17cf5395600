"""Tokens per second of plain decoding and the static chains: what a latency profile and rounds of longer drafts predict.

A static chain's distribution of the accepted length comes, by depth, from the rounds of all longer static drafts at its sampling
setting, cut at its own γ. (Shorter drafts begin their rounds elsewhere in the text.) The profile gives the time
(`predictors.latency.throughput`). Of what a chain was measured to do, only the lengths of its outputs enter its own prediction;
the longest draft's acceptance is its own.

    error            predicted / measured - 1, of tokens per second
    drift            plain decoding's error: no acceptance enters there
    speed-up error   (1 + error) / (1 + drift) - 1, of the speed-up over plain decoding
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipelines.measuring.names import PLAIN, chain_gamma
from pipelines.reporting.comparison import By, Comparison
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.section import Metric, Table, grid
from predictors.latency.acceptance import AcceptanceStatistics
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import generation_latency

# Median relative error from which on a prediction is none. On one machine it is a few hundredths, and half of it lies beyond what
# another load or number format explains.
MOST_APART = 0.5
APART = (
    f"Latency profile and clock do not belong together: they are more than {MOST_APART:.0%} apart in the median. One of them was "
    "measured on another machine or while other jobs ran. Run dvc repro -sf latency@PAIR, then dvc repro."
)


def predictions(measured: Measured, profile: LatencyProfile) -> pd.DataFrame:
    """A row for every static arm at every sampling setting; ``low`` and ``high`` follow from the latencies' quartiles."""
    compared, rows = Comparison(measured), []
    for setting in measured.settings:
        arms = [arm for arm in measured.arms(setting) if arm == PLAIN or chain_gamma(arm) is not None]
        for arm in arms:
            runs = compared.rows(arm, By(setting))
            longer = [other for other in arms if _gamma(other) > _gamma(arm)] or arms[-1:]
            accepted = acceptance(measured, setting, longer).accepted_law(_gamma(arm)) if _gamma(arm) else np.ones(1)
            speed = compared.rate(arm, "tokens", "seconds", By(setting))["value"]
            predicted = _predicted(profile, runs, accepted, _gamma(arm), not measured.greedy(setting))
            name = "plain" if arm == PLAIN else f"γ={_gamma(arm)}"
            rows.append({"setting": setting, "arm": arm, "name": name, "measured": speed, **predicted})
    table = pd.DataFrame(rows)
    table["error"] = table["value"] / table["measured"] - 1
    plain = table["arm"] == PLAIN
    drift = table["setting"].map(table[plain].set_index("setting")["error"])
    table["speedup_error"] = ((1 + table["error"]) / (1 + drift) - 1).where(~plain)
    return table


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """Errors of some predictions, and how well they rank, as far as there are enough to say."""
    made = {
        "median error": float(rows["error"].abs().median()),
        "largest error": float(rows["error"].abs().max()),
        "drift": float(rows.loc[rows["arm"] == PLAIN, "error"].mean()),
        "median speedup error": float(rows["speedup_error"].abs().median()),
        "largest speedup error": float(rows["speedup_error"].abs().max()),
        "rank correlation": float(rows["measured"].corr(rows["value"], method="spearman")),
    }
    return {name: value for name, value in made.items() if np.isfinite(value)}


def acceptance(measured: Measured, setting: str, arms: Sequence[str]) -> AcceptanceStatistics:
    """Of static drafts, in the rounds that nothing cut short."""
    runs = measured.counted[measured.counted["setting"] == setting]
    histograms = {arm: runs.loc[runs["arm"] == arm, "uncut_histogram"] for arm in arms}
    whole = [[row for row in rows if len(row) == _gamma(arm) + 1] for arm, rows in histograms.items()]
    return AcceptanceStatistics([np.sum(rows, axis=0).tolist() for rows in whole if rows])


def _predicted(
    profile: LatencyProfile, runs: pd.DataFrame, accepted: np.ndarray, gamma: int, sampled: bool
) -> dict[str, float]:
    """Tokens per second over the same prompts and output lengths."""
    seconds = np.zeros(3)
    for (prompt, tokens), count in Counter(zip(runs["prompt_tokens"], runs["tokens"], strict=True)).items():
        one = generation_latency(profile, accepted, gamma, int(prompt), int(tokens), sampled)
        seconds += count * tokens / np.array([one.tokens_per_second, one.low, one.high])
    return dict(zip(("value", "low", "high"), (runs["tokens"].sum() / seconds).tolist(), strict=True))


def _gamma(arm: str) -> int:
    return chain_gamma(arm) or 0


def by_arm(rows: pd.DataFrame) -> list[Table]:
    """A table for each sampling setting: every arm's tokens per second, measured and predicted."""
    columns: dict[str, Metric] = {
        "measured, tokens/s": lambda row: row["measured"],
        "predicted, tokens/s": lambda row: {end: row[end] for end in ("value", "low", "high")},
    }
    return [
        grid("arm", {row["name"]: (row,) for row in own.to_dict("records")}, columns, str(setting))
        for setting, own in rows.groupby("setting")
    ]
