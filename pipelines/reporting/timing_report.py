"""``timing.json``: what the measurement says about wall-clock time on one machine, with 95 % intervals over documents."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipelines.measuring.names import CHAIN, CONFIDENCE, ENTROPY, HF_ASSISTED, HF_FORWARD, HF_PLAIN, HRAD, PLAIN
from pipelines.reporting.bars import SHARE, TINY, bar_row
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.paired_arms import PairedArms
from pipelines.reporting.statistics import Interval, less_one
from predictors.rounds import PHASES

OVERHEAD_BAR, PLAIN_BAR, GREEDY_BAR, SAMPLING_BAR = 0.10, 1.1, 1.0, 1.1
AGREEMENT_BAR = 1e-5
SHARES = (*(phase for phase in PHASES if phase != "wait"), "rest")  # these arms' models take turns: none waits
CONTROLLERS = (CONFIDENCE, ENTROPY, HRAD)  # what is compared with the best static setting; the first as chosen


class TimingReport:
    """Builds the record; every comparison is paired by block (`pipelines.reporting.paired_arms`)."""

    def __init__(self, measured: Measured, replicates: int, seed: int) -> None:
        self.measured = measured
        self.arms = PairedArms(measured, replicates, seed)

    def build(self) -> dict[str, Any]:
        measured, findings = self.measured, self.measured.findings
        overhead = self._overhead()
        comparisons = {
            "plain_over_hf_generate": self._ratios(PLAIN, HF_PLAIN),
            "best_static_over_hf_assisted": self._ratios(CHAIN, HF_ASSISTED),
        }
        if HF_FORWARD in measured.families:
            comparisons["compact_over_hf_forward"] = self._ratios(PLAIN, HF_FORWARD)
        return {
            "settings": [self._setting(setting) for setting in measured.settings],
            "slices": {name: self._slice(name) for name in sorted(measured.test["slice"].unique())},
            "pooled": self._slice(None),
            "comparisons": comparisons,
            "loop_overhead": overhead,
            "bars": self._bars(comparisons, overhead),
            "prompts": int(measured.test["prompt"].nunique()),
            "documents": int(measured.test["document"].nunique()),
            "capped": findings["capped"],
            "notes": findings["notes"],
            "bundle": measured.bundle,
        }

    def _setting(self, setting: str) -> dict[str, Any]:
        choices = {choice["family"]: choice for choice in self.measured.chosen_at(setting)}
        return {
            "setting": setting,
            "chosen": {family: choice["arm"] for family, choice in choices.items()},
            "validation": {family: choice["tokens_per_second"] for family, choice in choices.items()},
            "arms": {arm: self._arm(arm, setting) for arm in self.measured.arms(setting)},
            "cost": self._cost(setting),
        }

    def _arm(self, arm: str, setting: str) -> dict[str, Any]:
        rows = self.arms.rows(arm, [setting])
        return {
            **self.arms.speed(arm, [setting]),
            "prompts": int(rows.index.get_level_values("prompt").nunique()),
            "median_speedup": self.arms.median(arm, PLAIN, [setting]),
            "time_shares": self._shares(rows),
        }

    @staticmethod
    def _shares(runs: pd.DataFrame) -> dict[str, float] | None:
        """Share of all seconds by phase; ``None`` where the arm keeps no clock."""
        if runs["rounds"].isna().any():
            return None
        return {phase: float(runs[f"seconds_{phase}"].sum() / runs["seconds"].sum()) for phase in SHARES}

    def _cost(self, setting: str) -> dict[str, float]:
        """Milliseconds of a plain target pass and of a drafted token (prefill spread over them), and their ratio."""
        plain, static = (self.arms.rows(name, [setting]) for name in (PLAIN, CHAIN))
        target = 1000 * plain["seconds_target"].sum() / (plain["rounds"].sum() + len(plain))
        draft = 1000 * static["seconds_draft"].sum() / max(static["drafted"].sum(), 1)
        return {"target_pass_ms": float(target), "drafted_token_ms": float(draft), "ratio": float(target / draft)}

    def _slice(self, name: str | None) -> dict[str, Any]:
        """Speed-up and gain of the chosen settings in a slice, pooled over sampling settings."""
        timed = [choice for choice in CONTROLLERS if choice == CONFIDENCE or choice in self.measured.families]
        return {
            choice: {
                "speedup": self.arms.ratio(choice, PLAIN, slice_=name),
                "gain": self.arms.gain(choice, CHAIN, slice_=name),
            }
            for choice in (CHAIN, *timed)
        }

    def _ratios(self, arm: str, base: str) -> list[dict[str, Any]]:
        """Rate ratio and median ratio of two arms, by sampling setting."""
        return [
            {"setting": setting, "greedy": self.measured.greedy(setting)}
            | {"ratio": self.arms.ratio(arm, base, [setting]), "median_ratio": self.arms.median(arm, base, [setting])}
            for setting in self.measured.settings
        ]

    def _overhead(self) -> dict[str, Interval]:
        """Time in the loop over time of its passes alone, less one, for plain decoding and the best static γ; nothing where that
        was not timed."""
        if self.measured.loop.empty:
            return {}
        repeats = self.measured.loop.groupby(["arm", "temperature", "prompt"], sort=True)
        items = repeats.agg(document=("document", "first"), loop=("loop", "min"), passes=("passes", "min"))
        plain = items.index.get_level_values("arm") == PLAIN
        parts = {"plain": items[plain], "best_static": items[~plain]}
        return {name: less_one(self.arms.of(part, "loop", "passes")) for name, part in parts.items() if len(part)}

    def _bars(self, comparisons: dict[str, Any], overhead: dict[str, Interval]) -> list[dict[str, Any]]:
        rows = [
            bar_row(f"loop overhead, {name.replace('_', ' ')}", value, OVERHEAD_BAR, SHARE, at_most=True)
            for name, value in overhead.items()
        ]
        for name, found in self.measured.findings["forward_agreement"].items():
            difference = {"value": found["compact"], "low": None, "high": None}
            text = f"{name}'s logits, compact against HF's forward in float32, of 1 + |logit|"
            rows.append(bar_row(text, difference, AGREEMENT_BAR, TINY, at_most=True))
        rows += _ratio_bars("plain / HF generate", comparisons["plain_over_hf_generate"], (PLAIN_BAR, PLAIN_BAR))
        against = comparisons["best_static_over_hf_assisted"]
        return rows + _ratio_bars("best static / HF assisted", against, (GREEDY_BAR, SAMPLING_BAR))


def _ratio_bars(name: str, ratios: Sequence[dict[str, Any]], bars: tuple[float, float]) -> list[dict[str, Any]]:
    """A bar per sampling setting at which both were timed; ``bars`` of greedy and of sampled texts."""
    return [
        bar_row(f"{name}, {row['setting']}", row["ratio"], bars[not row["greedy"]])
        for row in ratios
        if row["ratio"]["value"] is not None
    ]
