"""What choosing is worth, on recorded texts: plain decoding, the best static chain, the best rule, and the oracle.

    rivals       of every family of simple rules the one of most tokens per second on validation texts
    ours         the rule (confidence, unlearned or learned) of most tokens per second on validation texts
    gap closed   (ours - best static) / (oracle - best static), in tokens per second
    agreement    the same policies on the clock, on the prompts that both decoded: speed-ups over plain decoding, replayed over
                 measured, and what choosing by replay would have cost: measured speed of its choice over that of the fastest,
                 among policies whose times are the wall's

Test texts; intervals by bootstrap over documents. Slice `edit` has a row of its own in the ladder and is in nothing else: neither
in what all texts say nor in what is chosen on validation texts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipelines.measuring.names import (
    CHAIN,
    CONFIDENCE,
    LOOKUP,
    PLAIN,
    PROVENANCE,
    RULE,
    TAKEOVER,
    VALIDATION,
    on_virtual_clock,
)
from pipelines.measuring.replay.names import BRANCHES, BRANCHES_WALL, ORACLE, REPLAYED, replayed_at
from pipelines.reporting.bars import apart
from pipelines.reporting.inputs import Inputs, Section
from pipelines.reporting.intervals import percent, times
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.paired_arms import PairedArms
from pipelines.reporting.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, whiskers
from predictors.schema import EDIT

OURS = "ours"
RULES = (CONFIDENCE, RULE)
RIVALS = (CONFIDENCE, LOOKUP, TAKEOVER)  # families of simple rules, of each of which validation texts choose one
ALL = "all"  # texts, besides the slices
ROUNDING = 1e-6
COLOURS = {CHAIN: GREY, CONFIDENCE: GREEN, RULE: BLUE, BRANCHES: RED, BRANCHES_WALL: RED, ORACLE: PURPLE}
COLOURS |= {LOOKUP: ORANGE, TAKEOVER: ORANGE}


@dataclass(frozen=True)
class ReplayResults:
    """``decoding``: replayed decodes; ``clock``: the same machine's measurement; ``origin``; ``elsewhere``: decodes at other cost
    ratios."""

    decoding: pd.DataFrame
    clock: Measured | None
    origin: dict[str, Any]
    elsewhere: dict[float, pd.DataFrame]


def read_replay(folder: Path, clock: Measured | None) -> ReplayResults | None:
    """The replay in ``folder``; ``None`` if there is none."""
    if not (folder / PROVENANCE).is_file():
        return None
    origin = json.loads((folder / PROVENANCE).read_text())
    elsewhere = {ratio: pd.read_parquet(folder / replayed_at(ratio)) for ratio in origin.get("cost_ratios", [])}
    return ReplayResults(pd.read_parquet(folder / REPLAYED), clock, origin, elsewhere)


class ReplayReport(Section):
    """Builds the records of ``quality.json`` (what was read) and ``timing.json`` (what follows from the machine's latencies)."""

    def __init__(self, results: ReplayResults, replicates: int, seed: int) -> None:
        edits = results.decoding["slice"] == EDIT
        texts = _replayed(results.decoding[~edits])
        self.results = results
        self.texts = PairedArms(texts, replicates, seed)
        self.edits = PairedArms(replace(texts, decodes=_renamed(results.decoding[edits])), replicates, seed)
        self.elsewhere = {
            ratio: ReplayReport(replace(results, decoding=table, clock=None, elsewhere={}), replicates, seed)
            for ratio, table in results.elsewhere.items()
        }

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        results = read_replay(inputs.of("replay"), inputs.measured)
        return None if results is None else cls(results, *inputs.drawn)

    def figures(self, quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        """Gain of every policy over the best static chain, the fastest on top."""
        panels = []
        for row in timing["settings"]:
            families = COLOURS.keys() - RIVALS
            names = row["rivals"].values()
            shown = [one for one in row["policies"] if one["family"] in families or one["policy"] in names]
            shown.sort(key=lambda policy: -policy["gain"]["value"])
            panels.append(
                (row["setting"], [(one["policy"], [(one["gain"], (COLOURS[one["family"]], "o"))]) for one in shown])
            )
        return {"replay": whiskers(panels, "gain over the best static chain, replayed", line=0, percent=True)}

    def quality(self) -> dict[str, Any]:
        """Texts and documents by sampling setting."""
        parts = {setting: self.texts.rows(PLAIN, [setting]) for setting in self.texts.measured.settings}
        return {
            setting: {"texts": len(rows), "documents": int(rows["document"].nunique())}
            for setting, rows in parts.items()
        }

    def timing(self) -> dict[str, Any]:
        """By sampling setting: the ladder over all texts and in each slice, all policies, and how far the clock agrees."""
        return {"settings": [self._setting(setting) for setting in self.texts.measured.settings]}

    def _setting(self, setting: str) -> dict[str, Any]:
        measured = self.texts.measured
        choices = measured.choices(setting)
        return {
            **self.chosen(setting),
            "setting": setting,
            "rivals": {family: choices[family] for family in RIVALS if family in choices},
            "texts": len(self.texts.rows(PLAIN, [setting])),
            "cost_ratio": self.results.origin.get("cost_ratio"),
            "elsewhere": [{"cost_ratio": ratio, **report.chosen(setting)} for ratio, report in self.elsewhere.items()],
            "policies": [
                {"family": measured.families[arm], "policy": arm, **self._worth(setting, arm)}
                for arm in measured.arms(setting)
            ],
            "agreement": None if self.results.clock is None else self._agreement(setting, self.results.clock),
        }

    def chosen(self, setting: str) -> dict[str, Any]:
        """The static chain and the rule that validation texts choose, and their ladder over all test texts and by slice."""
        choices = self.texts.measured.choices(setting)
        slices = sorted(self.texts.rows(PLAIN, [setting])["slice"].unique())
        ladder = {name: self._ladder(self.texts, setting, None if name == ALL else name) for name in (ALL, *slices)}
        if setting in self.edits.measured.settings:
            ladder[EDIT] = self._ladder(self.edits, setting, EDIT)
        return {"static": choices[CHAIN], "ours": choices[OURS], "ladder": ladder}

    @staticmethod
    def _ladder(arms: PairedArms, setting: str, slice_: str | None) -> dict[str, Any]:
        """Speed-ups over plain decoding, step by step, and the share of the gap that rules close."""
        at = [setting], slice_
        rows = {name: arms.rows(name, *at) for name in (PLAIN, CHAIN, OURS, ORACLE)}
        rates = {name: (part["tokens"], part["seconds"]) for name, part in rows.items()}
        _require_oracle_above(f"{setting}, {slice_ or ALL}", rows[CHAIN], rows[ORACLE])
        return {
            "texts": len(rows[PLAIN]),
            "static": arms.ratio(CHAIN, PLAIN, *at),
            "ours": arms.ratio(OURS, PLAIN, *at),
            "oracle": arms.ratio(ORACLE, PLAIN, *at),
            "gain": arms.gain(OURS, CHAIN, *at),
            "room": arms.gain(ORACLE, CHAIN, *at),
            "closed": arms.bootstrap(rows[PLAIN]).share_between(rates[OURS], rates[CHAIN], rates[ORACLE]),
        }

    def _worth(self, setting: str, arm: str) -> dict[str, Any]:
        rows = self.texts.rows(arm, [setting])
        return {
            "speedup": self.texts.ratio(arm, PLAIN, [setting]),
            "gain": self.texts.gain(arm, CHAIN, [setting]),
            "submitted_per_round": float(rows["submitted"].sum() / rows["rounds"].sum()),
            "accepted_per_round": float(rows["accepted"].sum() / rows["rounds"].sum()),
        }

    def _agreement(self, setting: str, clock: Measured) -> dict[str, Any] | None:
        """Replayed against measured speed-ups of the policies that were timed; ``None`` where none was at this setting."""
        who = ["setting", "prompt", "arm"]
        replayed = self.texts.measured.test[[*who, "tokens", "seconds"]]
        rows = clock.test[clock.test["setting"] == setting].merge(replayed[who], on=who)
        made = rows.drop(columns=["tokens", "seconds"]).merge(replayed, on=who, validate="many_to_one")
        timed, predicted = (self._paired(table) for table in (rows, made))
        shown = [arm for arm in timed.measured.families if arm != PLAIN]
        speeds = {arm: [arms.ratio(arm, PLAIN, [setting])["value"] for arms in (predicted, timed)] for arm in shown}
        known = {
            arm: (ours, theirs) for arm, (ours, theirs) in speeds.items() if ours is not None and theirs is not None
        }
        real = {arm: pair for arm, pair in known.items() if not on_virtual_clock(arm)}
        if not real:
            return None
        choice, best = max(real, key=lambda arm: real[arm][0]), max(real, key=lambda arm: real[arm][1])
        errors = [abs(ours / theirs - 1) for ours, theirs in real.values()]
        return {
            "prompts": int(rows["prompt"].nunique()),
            "policies": [
                {"policy": arm, "replayed": ours, "measured": theirs, "virtual": on_virtual_clock(arm)}
                for arm, (ours, theirs) in known.items()
            ],
            "choice": choice,
            "best": best,
            "gain": timed.gain(choice, best, [setting]),
            "apart": apart(float(np.median(errors))),
            "median_error": float(np.median(errors)),
            "largest_error": max(errors),
        }

    def _paired(self, rows: pd.DataFrame) -> PairedArms:
        return PairedArms(replace(self.texts.measured, decodes=rows), self.texts.replicates, self.texts.seed)

    @staticmethod
    def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
        """The ladder, by sampling setting."""
        found = []
        for row in timing["settings"]:
            made, agreement = row["ladder"][ALL], row["agreement"]
            closed = made["closed"]
            known = closed["value"] is not None
            share = f" ({closed['value']:.0%} of the gap, {closed['low']:.0%} to {closed['high']:.0%})" if known else ""
            found.append(
                f"{row['setting']}, replayed: plain decoding, {row['static']} {times(made['static'])}, {row['ours']} "
                f"{times(made['ours'])}{share}, and {times(made['oracle'])} for the oracle."
            )
            if agreement is None:
                continue
            if agreement["apart"]:
                found.append(f"{row['setting']}: {agreement['apart']}, and read no replayed figure.")
                continue
            same = agreement["choice"] == agreement["best"]
            cost = (
                "the fastest there"
                if same
                else f"{percent(agreement['gain'])} against the fastest, {agreement['best']}"
            )
            found.append(
                f"{row['setting']}: on {agreement['prompts']} prompts on the clock, replayed speed-ups are "
                f"{agreement['median_error']:.0%} off in the median, {agreement['largest_error']:.0%} at most; "
                f"replay would have chosen {agreement['choice']}, {cost}."
            )
        return found


def _renamed(table: pd.DataFrame) -> pd.DataFrame:
    """Replayed decodes with the columns of measured ones."""
    return table.rename(columns={"drafter": "arm"}).assign(repeat=0)


def _replayed(table: pd.DataFrame) -> Measured:
    rows = _renamed(table)
    return Measured(rows, pd.DataFrame(), {"choices": [*_fastest(rows)]}, {})


def _fastest(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The static chain, the rule and the rivals of most tokens per second on validation texts, by sampling setting."""
    rows = rows[rows["split"] == VALIDATION]
    for family, members in {OURS: RULES, **{one: (one,) for one in (CHAIN, *RIVALS)}}.items():
        own = rows[rows["family"].isin(members)]
        sums = own.groupby(["setting", "arm"], sort=False)[["tokens", "seconds"]].sum()
        for setting, rates in (sums["tokens"] / sums["seconds"]).groupby("setting"):
            yield {"setting": setting, "family": family, "arm": str(rates.droplevel(0).idxmax())}


def _require_oracle_above(where: str, base: pd.DataFrame, oracle: pd.DataFrame) -> None:
    """An error below the static chain: by construction (`predictors.replay.oracle`) no chain takes less time on any text, at
    whatever prices, so the rows were not replayed together."""
    below, above = (float(rows["tokens"].sum() / rows["seconds"].sum()) for rows in (base, oracle))
    if above < below * (1 - ROUNDING):
        raise ValueError(
            f"{where}: replay gives the oracle {above:.4g} tokens/s, below the static chain's {below:.4g} "
            f"({base['arm'].iloc[0]}), which cannot be. Measure the profile again and replay by it: dvc repro -sf latency@PAIR, "
            "then dvc repro replay@PAIR."
        )
