"""What choosing is worth, on recorded texts: plain decoding, the best static chain, the best rule, and who knows the outcome.

    ours         the rule (confidence, unlearned or learned) of most tokens per second on validation texts
    gap closed   (ours - best static) / (oracle - best static), in tokens per second
    agreement    the same policies on the clock, on the prompts that both decoded: speed-ups over plain decoding, replayed over
                 measured, and what choosing by replay would have cost: measured speed of its choice over that of the fastest,
                 among policies whose times are the wall's

Test texts; intervals by bootstrap over documents. Slice `edit` has a row of its own in the ladder and is in nothing else: neither
in what all texts say nor in what is chosen on validation texts.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from pipelines.measuring.names import CHAIN, CONFIDENCE, PLAIN, RULE, TEST, on_virtual_clock
from pipelines.measuring.replay.names import ORACLE
from pipelines.prompt_table import EDIT
from pipelines.reporting.bars import apart
from pipelines.reporting.decoding_arms import DecodingArms
from pipelines.reporting.headline import percent, times
from pipelines.reporting.replay_folder import ReplayResults
from pipelines.reporting.statistics import UNDEFINED, Interval, PairedBootstrap, less_one

RULES = (CONFIDENCE, RULE)
BLOCK = ["prompt", "repeat"]  # at one sampling setting
ALL = "all"  # texts, beside the slices
ROUNDING = 1e-6


class ReplayReport(DecodingArms):
    """Builds the records of ``quality.json`` (what was read) and ``timing.json`` (what follows from the machine's latencies)."""

    def __init__(self, results: ReplayResults, replicates: int, seed: int) -> None:
        edits = results.decoding["slice"] == EDIT
        super().__init__(results.decoding[~edits], replicates, seed)
        self.edits = DecodingArms(results.decoding[edits], replicates, seed)
        self.results = results
        self.elsewhere = {
            ratio: ReplayReport(replace(results, decoding=table, measured={}, elsewhere={}), replicates, seed)
            for ratio, table in results.elsewhere.items()
        }

    def quality(self) -> dict[str, Any]:
        """Texts and documents by sampling setting."""
        parts = {setting: self.rows(setting, PLAIN) for setting in self.settings}
        return {
            setting: {"texts": len(rows), "documents": int(rows["document"].nunique())}
            for setting, rows in parts.items()
        }

    def timing(self) -> dict[str, Any]:
        """By sampling setting: the ladder over all texts and in each slice, all policies, and how far the clock agrees."""
        return {"settings": [self._setting(setting) for setting in self.settings]}

    def _setting(self, setting: str) -> dict[str, Any]:
        static, ours = self.fastest(setting, CHAIN), self._ours(setting)
        shown = self.test[self.test["setting"] == setting][["family", "drafter"]].drop_duplicates()
        return {
            "setting": setting,
            "texts": len(self.rows(setting, PLAIN)),
            "static": static,
            "ours": ours,
            "cost_ratio": self.results.origin.get("cost_ratio"),
            "ladder": {part: self._ladder(setting, static, ours, part) for part in self._parts(setting)},
            "elsewhere": [{"cost_ratio": ratio, **report.chosen(setting)} for ratio, report in self.elsewhere.items()],
            "policies": [
                {"family": family, "policy": arm, **self._worth(setting, arm, static)}
                for family, arm in shown.itertuples(index=False)
            ],
            "agreement": {
                study: made
                for study, table in self.results.measured.items()
                if (made := self._agreement(setting, table)) is not None
            },
        }

    def chosen(self, setting: str) -> dict[str, Any]:
        """The static chain and the rule that validation texts choose, and their ladder over all test texts."""
        static, ours = self.fastest(setting, CHAIN), self._ours(setting)
        return {"static": static, "ours": ours, "ladder": self._ladder(setting, static, ours, ALL)}

    def _ours(self, setting: str) -> str:
        """The rule that was fastest on validation texts."""
        rows = self.validation[(self.validation["setting"] == setting) & self.validation["family"].isin(RULES)]
        sums = rows.groupby("drafter", sort=False)[["tokens", "seconds"]].sum()
        return str((sums["tokens"] / sums["seconds"]).idxmax())

    def _parts(self, setting: str) -> list[str]:
        edits = [EDIT] if setting in self.edits.settings else []
        return [ALL, *sorted(self.rows(setting, PLAIN)["slice"].unique()), *edits]

    def _ladder(self, setting: str, static: str, ours: str, part: str) -> dict[str, Any]:
        """Speed-ups over plain decoding, step by step, and the share of the gap that rules close."""
        plain, *steps = (self._part(setting, arm, part) for arm in (PLAIN, static, ours, ORACLE))
        _require_oracle_above(f"{setting}, {part}", static, steps[0], steps[-1])
        bootstrap = PairedBootstrap(list(plain["document"]), self.replicates, self.seed)
        base, rule, perfect = ((rows["tokens"], rows["seconds"]) for rows in steps)
        return {
            "texts": len(plain),
            **{
                name: bootstrap.rate_ratio(rows["tokens"], rows["seconds"], plain["tokens"], plain["seconds"])
                for name, rows in zip(("static", "ours", "oracle"), steps, strict=True)
            },
            "gain": less_one(bootstrap.rate_ratio(*rule, *base)),
            "room": less_one(bootstrap.rate_ratio(*perfect, *base)),
            "closed": bootstrap.share_between(*rule, *base, *perfect),
        }

    def _worth(self, setting: str, arm: str, static: str) -> dict[str, Any]:
        rows, base, plain = (self.rows(setting, name) for name in (arm, static, PLAIN))
        bootstrap = self.bootstrap(setting)
        return {
            "speedup": bootstrap.rate_ratio(rows["tokens"], rows["seconds"], plain["tokens"], plain["seconds"]),
            "gain": less_one(bootstrap.rate_ratio(rows["tokens"], rows["seconds"], base["tokens"], base["seconds"])),
            "submitted_per_round": float(rows["submitted"].sum() / rows["rounds"].sum()),
            "accepted_per_round": float(rows["accepted"].sum() / rows["rounds"].sum()),
        }

    def _part(self, setting: str, arm: str, part: str) -> pd.DataFrame:
        if part == EDIT:
            return self.edits.rows(setting, arm)
        rows = self.rows(setting, arm)
        return rows if part == ALL else rows[rows["slice"] == part]

    def _agreement(self, setting: str, table: pd.DataFrame) -> dict[str, Any] | None:
        """Replayed against measured speed-ups of the policies in ``table``; ``None`` where it has none at this setting."""
        table = table[table["split"] == TEST]
        measured, replayed = (rows[rows["setting"] == setting] for rows in (table, self.test))
        prompts, arms = (set(measured[name]) & set(replayed[name]) for name in ("prompt", "drafter"))
        measured = measured[measured["prompt"].isin(prompts) & measured["drafter"].isin(arms)]
        timed, predicted = _speedups(measured), _speedups(_repeated(measured, replayed))
        shown = [arm for arm in timed if arm != PLAIN and arm in predicted]
        real = [arm for arm in shown if not on_virtual_clock(arm)]
        if not real:
            return None
        choice, best = max(real, key=predicted.__getitem__), max(real, key=timed.__getitem__)
        errors = [abs(predicted[arm] / timed[arm] - 1) for arm in real]
        rows, base = _shared(measured, choice, best)
        return {
            "prompts": len(prompts),
            "policies": [
                {"policy": arm, "replayed": predicted[arm], "measured": timed[arm], "virtual": on_virtual_clock(arm)}
                for arm in shown
            ],
            "choice": choice,
            "best": best,
            "gain": self._gain(rows, base),
            "apart": apart(float(np.median(errors))),
            "median_error": float(np.median(errors)),
            "largest_error": max(errors),
        }

    def _gain(self, rows: pd.DataFrame, base: pd.DataFrame) -> Interval:
        """What replay's choice was worth on the clock; undefined where the fastest was not timed beside it."""
        if rows.empty:
            return dict(UNDEFINED)
        bootstrap = PairedBootstrap(list(rows["document"]), self.replicates, self.seed)
        return less_one(bootstrap.rate_ratio(rows["tokens"], rows["seconds"], base["tokens"], base["seconds"]))


def _require_oracle_above(where: str, static: str, base: pd.DataFrame, oracle: pd.DataFrame) -> None:
    """An error below the static chain: by construction (`predictors.replay.oracle`) no chain takes less time on any text, at
    whatever prices, so the rows were not replayed together."""
    below, above = (float(rows["tokens"].sum() / rows["seconds"].sum()) for rows in (base, oracle))
    if above < below * (1 - ROUNDING):
        raise ValueError(
            f"{where}: replay gives who knows the outcome {above:.4g} tokens/s, below the static chain's {below:.4g} ({static}), "
            "which cannot be. Measure the profile again and replay by it: dvc repro -sf latency@PAIR, then dvc repro replay@PAIR."
        )


def _against(agreement: dict[str, Any]) -> str:
    """What choosing by replay would have cost."""
    if agreement["choice"] == agreement["best"]:
        return "the fastest there"
    return f"{percent(agreement['gain'])} against the fastest there ({agreement['best']})"


def _repeated(measured: pd.DataFrame, replayed: pd.DataFrame) -> pd.DataFrame:
    """Of every measured decode the replayed tokens and seconds of the same policy on the same prompt."""
    who = ["prompt", "drafter"]
    made = replayed[[*who, "tokens", "seconds"]]
    return measured.drop(columns=["tokens", "seconds"]).merge(made, on=who, validate="many_to_one")


def _shared(rows: pd.DataFrame, arm: str, base: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of both on the prompts and repeats that both decoded."""
    made, other = (rows[rows["drafter"] == name].set_index(BLOCK) for name in (arm, base))
    shared = made.index.intersection(other.index).sort_values()
    return made.loc[shared], other.loc[shared]


def _speedups(rows: pd.DataFrame) -> dict[str, float]:
    """By arm, tokens per second over those of plain decoding where both decoded."""
    speedups = {}
    for arm in rows["drafter"].unique():
        made, plain = (part[["tokens", "seconds"]].sum() for part in _shared(rows, arm, PLAIN))
        if made["seconds"]:
            speedups[str(arm)] = float(made["tokens"] / made["seconds"] / (plain["tokens"] / plain["seconds"]))
    return speedups


def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
    """The ladder, by sampling setting."""
    found = []
    for row in timing["settings"]:
        made = row["ladder"][ALL]
        closed = made["closed"]
        known = closed["value"] is not None
        share = f" ({closed['value']:.0%} of the gap, {closed['low']:.0%} to {closed['high']:.0%})" if known else ""
        found.append(
            f"{row['setting']}, replayed: plain decoding, {row['static']} {times(made['static'])}, {row['ours']} "
            f"{times(made['ours'])}{share}, and {times(made['oracle'])} for who knows what will be accepted."
        )
        for study, agreement in row["agreement"].items():
            if agreement["apart"]:
                found.append(f"{row['setting']}: {agreement['apart']}, and read no replayed figure (stage {study}).")
                continue
            found.append(
                f"{row['setting']}: on {agreement['prompts']} prompts of stage {study}, replayed speed-ups are "
                f"{agreement['median_error']:.0%} off the clock's in the median, {agreement['largest_error']:.0%} at most; "
                f"replay would have chosen {agreement['choice']}, {_against(agreement)}."
            )
    return found
