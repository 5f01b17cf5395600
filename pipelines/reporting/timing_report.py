"""``timing.json``: what the benchmark says about wall-clock time on one machine, with 95 % intervals over documents."""

from typing import Any

import pandas as pd

from pipelines.measuring.names import HF_ASSISTED, HF_FORWARD, HF_PLAIN, PLAIN
from pipelines.reporting.bars import SHARE, TINY, bar_row
from pipelines.reporting.benchmark_folder import STATIC, Benchmark
from pipelines.reporting.statistics import Interval, PairedBootstrap, less_one
from predictors.rounds import PHASES

OVERHEAD_BAR, PLAIN_BAR, GREEDY_BAR, SAMPLING_BAR = 0.10, 1.1, 1.0, 1.1
AGREEMENT_BAR = 1e-5
SHARES = (*(phase for phase in PHASES if phase != "wait"), "rest")  # these arms' models take turns: none waits


class TimingReport:
    """Builds the record; every comparison is paired by prompt."""

    def __init__(self, benchmark: Benchmark, replicates: int, seed: int) -> None:
        self.benchmark = benchmark
        self.replicates = replicates
        self.seed = seed

    def build(self) -> dict[str, Any]:
        benchmark = self.benchmark
        temperatures = [self._temperature(t) for t in benchmark.temperatures]
        overhead = self._overhead()
        comparisons = {
            "plain_over_hf_generate": self._ratios(PLAIN, HF_PLAIN),
            "best_static_over_hf_assisted": self._ratios(STATIC, HF_ASSISTED),
        }
        if HF_FORWARD in benchmark.arms:
            comparisons["compact_over_hf_forward"] = self._ratios(PLAIN, HF_FORWARD)
        return {
            "temperatures": temperatures,
            "slices": {name: self._slice(name) for name in sorted(benchmark.runs["slice"].unique())},
            "pooled": self._slice(None),
            "comparisons": comparisons,
            "loop_overhead": overhead,
            "bars": self._bars(comparisons, overhead),
            "prompts": int(benchmark.runs["prompt"].nunique()),
            "documents": int(benchmark.runs["document"].nunique()),
            "capped": benchmark.findings["capped"],
            "notes": benchmark.findings["notes"],
            "bundle": benchmark.findings["bundle"],
        }

    def _bootstrap(self, items: pd.DataFrame) -> PairedBootstrap:
        return PairedBootstrap(items["document"].tolist(), self.replicates, self.seed)

    def _compare(self, items: pd.DataFrame, base: pd.DataFrame) -> Interval:
        assert items.index.equals(base.index), "arms must have decoded the same prompts"
        bootstrap = self._bootstrap(items)
        return bootstrap.rate_ratio(items["tokens"], items["seconds"], base["tokens"], base["seconds"])

    def _median(self, items: pd.DataFrame, base: pd.DataFrame) -> Interval:
        ratios = (items["tokens"] / items["seconds"]) / (base["tokens"] / base["seconds"])
        return self._bootstrap(items).median(ratios.to_numpy())

    def _temperature(self, temperature: float) -> dict[str, Any]:
        benchmark = self.benchmark
        sweeps = {c["family"]: c for c in benchmark.findings["choices"] if c["temperature"] == temperature}
        return {
            "temperature": temperature,
            "chosen": {family: choice["arm"] for family, choice in sweeps.items()},
            "validation": {family: choice["tokens_per_second"] for family, choice in sweeps.items()},
            "arms": {arm: self._arm(arm, temperature) for arm in benchmark.arms},
            "cost": self._cost(temperature),
        }

    def _arm(self, arm: str, temperature: float) -> dict[str, Any]:
        items, plain, static = (self.benchmark.times(name, [temperature]) for name in (arm, PLAIN, STATIC))
        return {
            "tokens_per_second": self._bootstrap(items).rate(items["tokens"], items["seconds"]),
            "speedup": self._compare(items, plain),
            "median_speedup": self._median(items, plain),
            "gain_over_best_static": less_one(self._compare(items, static)),
            "time_shares": self._shares(arm, temperature),
        }

    def _shares(self, arm: str, temperature: float) -> dict[str, float] | None:
        """Share of all seconds by phase; ``None`` where the arm keeps no clock."""
        runs = self._runs(arm, temperature)
        if runs["rounds"].isna().any():
            return None
        return {phase: float(runs[f"seconds_{phase}"].sum() / runs["seconds"].sum()) for phase in SHARES}

    def _cost(self, temperature: float) -> dict[str, float]:
        """Milliseconds of a plain target pass and of a drafted token (prefill spread over them), and their ratio."""
        plain = self._runs(PLAIN, temperature)
        static = self._runs(self.benchmark.chosen(STATIC, temperature), temperature)
        target = 1000 * plain["seconds_target"].sum() / (plain["rounds"].sum() + len(plain))
        draft = 1000 * static["seconds_draft"].sum() / max(static["drafted"].sum(), 1)
        return {"target_pass_ms": float(target), "drafted_token_ms": float(draft), "ratio": float(target / draft)}

    def _runs(self, arm: str, temperature: float) -> pd.DataFrame:
        runs = self.benchmark.runs
        return runs[(runs["arm"] == arm) & (runs["temperature"] == temperature)]

    def _slice(self, name: str | None) -> dict[str, Any]:
        """Speed-up and gain of the chosen settings in a slice, pooled over temperatures."""
        plain, static = (self.benchmark.times(arm, slice_=name) for arm in (PLAIN, STATIC))
        record = {}
        for choice in (STATIC, *self.benchmark.controllers):
            items = self.benchmark.times(choice, slice_=name)
            record[choice] = {"speedup": self._compare(items, plain)}
            record[choice]["gain_over_best_static"] = less_one(self._compare(items, static))
        return record

    def _ratios(self, arm: str, base: str) -> list[dict[str, Any]]:
        """Rate ratio and median ratio of two arms, by temperature."""
        rows = []
        for temperature in self.benchmark.temperatures:
            items, others = (self.benchmark.times(name, [temperature]) for name in (arm, base))
            ratios = {"ratio": self._compare(items, others), "median_ratio": self._median(items, others)}
            rows.append({"temperature": temperature, **ratios})
        return rows

    def _overhead(self) -> dict[str, Interval]:
        """Time in the loop over time in the bare replay, less one, for plain decoding and the best static γ."""
        repeats = self.benchmark.replays.groupby(["arm", "temperature", "prompt"], sort=True)
        items = repeats.agg(document=("document", "first"), loop=("loop", "min"), replay=("replay", "min"))
        plain = items.index.get_level_values("arm") == PLAIN
        parts = {"plain": items[plain], "best_static": items[~plain]}
        return {
            name: less_one(self._bootstrap(part).rate(part["loop"], part["replay"])) for name, part in parts.items()
        }

    def _bars(self, comparisons: dict[str, Any], overhead: dict[str, Interval]) -> list[dict[str, Any]]:
        rows = [
            bar_row(f"loop overhead, {name.replace('_', ' ')}", value, OVERHEAD_BAR, SHARE, at_most=True)
            for name, value in overhead.items()
        ]
        for name, found in self.benchmark.findings["forward_agreement"].items():
            difference = {"value": found["compact"], "low": None, "high": None}
            text = f"{name}'s logits, compact against HF's forward in float32, of 1 + |logit|"
            rows.append(bar_row(text, difference, AGREEMENT_BAR, TINY, at_most=True))
        for row in comparisons["plain_over_hf_generate"]:
            rows.append(bar_row(f"plain / HF generate, T={row['temperature']:g}", row["ratio"], PLAIN_BAR))
        for row in comparisons["best_static_over_hf_assisted"]:
            bar = SAMPLING_BAR if row["temperature"] > 0 else GREEDY_BAR
            rows.append(bar_row(f"best static / HF assisted, T={row['temperature']:g}", row["ratio"], bar))
        return rows
