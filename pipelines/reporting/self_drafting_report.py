"""What methods without a draft model bring: counts of their passes, and their speed against a draft model and prompt lookup.

    speed-up   tokens / seconds over plain decoding, our own loop; of Hugging Face's arms the same, and over its own ``generate``
    counts     DE, HR and AL of `predictors.rounds`; guessed and candidate tokens of a pass
    upkeep     seconds spent on candidates, guesses and pool, of all seconds after the prefill

Real decodes, paired by block. Intervals by bootstrap over documents.
"""

from typing import Any, Self

import pandas as pd
from matplotlib.figure import Figure

from pipelines.measuring.names import (
    CALIBRATED,
    CHAIN,
    GIVEN,
    HF_ASSISTED,
    HF_FORWARD,
    HF_LOOKUP,
    HF_PLAIN,
    HUGGING_FACE,
    METHODS,
    PLAIN,
    PLAIN_FAMILY,
)
from pipelines.reporting.bars import SHARE, bar_row
from pipelines.reporting.inputs import Inputs, Section
from pipelines.reporting.intervals import surely_above, times
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.paired_arms import PairedArms
from pipelines.reporting.self_drafting_plots import self_drafting_figures
from pipelines.reporting.statistics import Interval

OWN = (CALIBRATED, GIVEN)
SHOWN = (PLAIN_FAMILY, CHAIN, CALIBRATED, GIVEN, HUGGING_FACE)
OUTSIDE = (HF_FORWARD, HF_ASSISTED)  # shown where a draft model drafts
BASES = (*METHODS, HF_LOOKUP)


class SelfDraftingReport(Section):
    """Builds the records of ``quality.json`` (counts, what was chosen) and ``timing.json`` (times); ``records`` of stage ``fit``
    by predictor."""

    def __init__(self, measured: Measured, records: dict[str, dict[str, Any]], replicates: int, seed: int) -> None:
        shown = [arm for arm, family in measured.families.items() if family in SHOWN and arm not in OUTSIDE]
        self.measured = measured.only(shown)
        self.records = records
        self.paired = PairedArms(self.measured, replicates, seed)

    def figures(self, quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        return self_drafting_figures(quality, timing)

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        report = cls(inputs.measured, inputs.fitted("guess"), *inputs.drawn)
        return None if report.empty else report

    @property
    def empty(self) -> bool:
        """Whether no method without a draft model was timed."""
        return not set(OWN) & set(self.measured.families.values())

    def quality(self) -> dict[str, Any]:
        """What was chosen for every method, what its ways are worth by the profile, and counts of measured passes."""
        return {
            "chosen": {record["method"]: record["chosen"] for record in self.records.values()},
            "ways": [row for record in self.records.values() for row in record["rows"]],
            "counts": [
                {"setting": setting, "arm": arm, **_counts(self.paired.rows(arm, [setting]))}
                for setting, arm in self._own
            ],
        }

    def timing(self) -> dict[str, Any]:
        """Measured speeds by sampling setting and arm, and by slice."""
        return {
            "settings": [self._speeds(setting) for setting in self.measured.settings],
            "prompts": int(self.measured.test["prompt"].nunique()),
            "capped": self.measured.findings["capped"],
            "bars": [
                bar_row(
                    f"{setting}: upkeep of {arm}, share of a step",
                    self._upkeep(setting, arm),
                    0.1,
                    SHARE,
                    at_most=True,
                )
                for setting, arm in self._own
            ],
        }

    @property
    def _own(self) -> list[tuple[str, str]]:
        """Methods without a draft model, at every sampling setting."""
        families = self.measured.families
        timed = [(setting, arm) for setting in self.measured.settings for arm in self._arms(setting)]
        return [(setting, arm) for setting, arm in timed if families[arm] in OWN]

    def _speeds(self, setting: str) -> dict[str, Any]:
        families = self.measured.families
        best = self.measured.choices(setting).get(CHAIN)
        arms = [arm for arm in self._arms(setting) if families[arm] != CHAIN or arm == best]
        shown = [arm for arm in arms if arm not in (PLAIN, HF_PLAIN)]
        slices = sorted(self.measured.test["slice"].unique())
        return {
            "setting": setting,
            "best": best,
            "arms": [self._arm(setting, families[arm], arm, best) for arm in arms],
            "slices": {name: {arm: self._slice(setting, arm, name) for arm in shown} for name in slices},
        }

    def _arms(self, setting: str) -> list[str]:
        """Arms that were timed, family by family."""
        families = self.measured.families
        return sorted(self.measured.arms(setting), key=lambda arm: SHOWN.index(families[arm]))

    def _arm(self, setting: str, family: str, arm: str, best: str | None) -> dict[str, Any]:
        rows, own = self.paired.rows(arm, [setting]), family in OWN
        return {
            "family": family,
            "arm": arm,
            **self.paired.speed(arm, [setting]),
            **({"gain": None} if best is None else {}),
            "over_hugging_face": self.paired.ratio(arm, HF_PLAIN, [setting]),
            "over": self._over_others(setting, arm),
            "upkeep": self._upkeep(setting, arm) if own else None,
            "milliseconds": _milliseconds(rows) if own or arm == PLAIN else None,
        }

    def _slice(self, setting: str, arm: str, name: str) -> dict[str, Any]:
        """The same ratios in one slice."""
        speedup = self.paired.ratio(arm, PLAIN, [setting], name)
        return {"speedup": speedup, "over": self._over_others(setting, arm, name)}

    def _over_others(self, setting: str, arm: str, slice_: str | None = None) -> dict[str, Interval | None]:
        """An arm over each of `BASES`; ``None`` for itself and for one that was not timed."""
        timed = set(self._arms(setting)) - {arm}
        return {base: self.paired.ratio(arm, base, [setting], slice_) if base in timed else None for base in BASES}

    def _upkeep(self, setting: str, arm: str) -> Interval:
        return self.paired.of(self.paired.rows(arm, [setting]), "seconds_draft", "seconds_rounds")

    @staticmethod
    def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
        """What drafting without a draft model brings, by sampling setting."""
        found = []
        for row in timing["settings"]:
            arms = [arm for arm in row["arms"] if arm["family"] == CALIBRATED]
            speeds = ", ".join(f"{arm['arm']} {times(arm['speedup'])}" for arm in arms)
            lookup = next((arm for arm in row["arms"] if arm["arm"] == HF_LOOKUP), None)
            others = ""
            if lookup:
                own = times(lookup["over_hugging_face"])
                others = (
                    f", Hugging Face prompt lookup {times(lookup['speedup'])}, which is {own} over its own generate"
                )
            sure = [arm["arm"] for arm in arms if surely_above(arm["speedup"], 1.0)]
            verdict = f"{'surely' if sure else 'none is surely'} faster than plain decoding"
            verdict += f": {', '.join(sure)}" if sure else ""
            found.append(f"{row['setting']}, without a draft model: {verdict} ({speeds}{others}).")
            chain = next((arm for arm in row["arms"] if arm["arm"] == row["best"]), None)
            if chain:
                found.append(
                    f"{row['setting']}: the pair's best static chain ({row['best']}) reaches {times(chain['speedup'])}."
                )
        return found


def _counts(rows: pd.DataFrame) -> dict[str, float | None]:
    """Of all passes after the prefills: DE, HR, AL, and mean guessed and candidate tokens."""
    rounds, tried, accepted = (int(rows[name].sum()) for name in ("rounds", "tried", "accepted"))
    return {
        "decoding_efficiency": 1 + accepted / rounds,
        "hit_rate": tried / rounds,
        "accept_length": 1 + accepted / tried if tried else None,
        "guessed": float(rows["guessed"].sum() / rounds),
        "candidates": float(rows["drafted"].sum() / rounds),
    }


def _milliseconds(rows: pd.DataFrame) -> dict[str, float]:
    """A pass: upkeep, the model's forward and the verdict (which is also the prefill's, of no candidates)."""
    rounds = rows["rounds"].sum()
    upkeep, verdict = (1e3 * float(rows[f"seconds_{phase}"].sum() / rounds) for phase in ("draft", "verify"))
    return {
        "upkeep": upkeep,
        "forward": 1e3 * float(rows["seconds_rounds"].sum() / rounds) - upkeep - verdict,
        "verdict": verdict,
    }
