"""What methods without a draft model bring: counts of their passes, and their speed beside a draft model and prompt lookup.

    speed-up   tokens / seconds over plain decoding, our own loop; of Hugging Face's arms the same, and over its own ``generate``
    counts     DE, HR and AL of `predictors.rounds`; guessed and candidate tokens of a pass
    upkeep     seconds spent on candidates, guesses and pool, of all seconds behind the prefill

Real decodes, paired by block. Intervals by bootstrap over documents.
"""

from typing import Any

import pandas as pd

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
from pipelines.reporting.headline import times
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.paired_arms import PairedArms
from pipelines.reporting.statistics import Interval, less_one

OWN = (CALIBRATED, GIVEN)
SHOWN = (PLAIN_FAMILY, CHAIN, CALIBRATED, GIVEN, HUGGING_FACE)
OUTSIDE = (HF_FORWARD, HF_ASSISTED)  # shown where a draft model drafts
BASES = (*METHODS, HF_LOOKUP)


class SelfDraftingReport:
    """Builds the records of ``quality.json`` (counts, what was chosen) and ``timing.json`` (times); ``records`` of the guesser
    stage by method."""

    def __init__(self, measured: Measured, records: dict[str, dict[str, Any]], replicates: int, seed: int) -> None:
        shown = [arm for arm, family in measured.families.items() if family in SHOWN and arm not in OUTSIDE]
        self.measured = measured.only(shown)
        self.records = records
        self.paired = PairedArms(self.measured, replicates, seed)

    @property
    def empty(self) -> bool:
        """Whether no method without a draft model was timed."""
        return not set(OWN) & set(self.measured.families.values())

    def quality(self) -> dict[str, Any]:
        """What was chosen for every method, what its ways are worth by the profile, and counts of measured passes."""
        return {
            "chosen": {method: record["chosen"] for method, record in self.records.items()},
            "ways": [row for record in self.records.values() for row in record["rows"]],
            "counts": [
                {"setting": _setting(temperature), "arm": arm, **_counts(self.paired.rows(arm, [temperature]))}
                for temperature, arm in self._own
            ],
        }

    def timing(self) -> dict[str, Any]:
        """Measured speeds by sampling setting and arm, and by slice."""
        return {
            "settings": [self._speeds(temperature) for temperature in self.measured.temperatures],
            "prompts": int(self.measured.test["prompt"].nunique()),
            "capped": self.measured.findings["capped"],
            "bars": [
                bar_row(
                    f"{_setting(temperature)}: upkeep of {arm}, share of a step",
                    self._upkeep(temperature, arm),
                    0.1,
                    SHARE,
                    at_most=True,
                )
                for temperature, arm in self._own
            ],
        }

    @property
    def _own(self) -> list[tuple[float, str]]:
        """Methods without a draft model, at every temperature."""
        families = self.measured.families
        timed = [(temperature, arm) for temperature in self.measured.temperatures for arm in self._arms(temperature)]
        return [(temperature, arm) for temperature, arm in timed if families[arm] in OWN]

    def _speeds(self, temperature: float) -> dict[str, Any]:
        families = self.measured.families
        best = self.measured.choices(temperature).get(CHAIN)
        arms = [arm for arm in self._arms(temperature) if families[arm] != CHAIN or arm == best]
        shown = [arm for arm in arms if arm not in (PLAIN, HF_PLAIN)]
        slices = sorted(self.measured.test["slice"].unique())
        return {
            "setting": _setting(temperature),
            "best": best,
            "arms": [self._arm(temperature, families[arm], arm, best) for arm in arms],
            "slices": {name: {arm: self._slice(temperature, arm, name) for arm in shown} for name in slices},
        }

    def _arms(self, temperature: float) -> list[str]:
        """Arms that were timed, family by family."""
        families = self.measured.families
        return sorted(self.measured.arms(temperature), key=lambda arm: SHOWN.index(families[arm]))

    def _arm(self, temperature: float, family: str, arm: str, best: str | None) -> dict[str, Any]:
        at, own = [temperature], family in OWN
        return {
            "family": family,
            "arm": arm,
            "tokens_per_second": self.paired.rate(arm, at),
            "speedup": self.paired.ratio(arm, PLAIN, at),
            "over_hugging_face": self.paired.ratio(arm, HF_PLAIN, at),
            "gain": None if best is None else less_one(self.paired.ratio(arm, best, at)),
            "over": self._over_others(temperature, arm),
            "upkeep": self._upkeep(temperature, arm) if own else None,
            "milliseconds": _milliseconds(self.paired.rows(arm, at)) if own or arm == PLAIN else None,
        }

    def _slice(self, temperature: float, arm: str, name: str) -> dict[str, Any]:
        """The same ratios in one slice."""
        speedup = self.paired.ratio(arm, PLAIN, [temperature], name)
        return {"speedup": speedup, "over": self._over_others(temperature, arm, name)}

    def _over_others(self, temperature: float, arm: str, slice_: str | None = None) -> dict[str, Interval | None]:
        """An arm over each of `BASES`; ``None`` for itself and for one that was not timed."""
        timed = set(self._arms(temperature)) - {arm}
        return {base: self.paired.ratio(arm, base, [temperature], slice_) if base in timed else None for base in BASES}

    def _upkeep(self, temperature: float, arm: str) -> Interval:
        rows = self.paired.rows(arm, [temperature])
        return self.paired.bootstrap(rows).rate(rows["seconds_draft"], rows["seconds_rounds"])


def _setting(temperature: float) -> str:
    return f"T={temperature:g}"


def _counts(rows: pd.DataFrame) -> dict[str, float | None]:
    """Of all passes behind the prefills: DE, HR, AL, and mean guessed and candidate tokens."""
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


def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
    """What drafting without a draft model brings, by sampling setting."""
    found = []
    for row in timing["settings"]:
        arms = [arm for arm in row["arms"] if arm["family"] == CALIBRATED]
        speeds = ", ".join(f"{arm['arm']} {times(arm['speedup'])}" for arm in arms)
        lookup = next((arm for arm in row["arms"] if arm["arm"] == HF_LOOKUP), None)
        beside = ""
        if lookup:
            own = times(lookup["over_hugging_face"])
            beside = f", Hugging Face prompt lookup {times(lookup['speedup'])}, which is {own} over its own generate"
        sure = [arm["arm"] for arm in arms if arm["speedup"]["low"] is not None and arm["speedup"]["low"] > 1]
        verdict = (
            f"surely faster than plain decoding: {', '.join(sure)}"
            if sure
            else "none is surely faster than plain decoding"
        )
        found.append(f"{row['setting']}, without a draft model: {verdict} ({speeds}{beside}).")
        chain = next((arm for arm in row["arms"] if arm["arm"] == row["best"]), None)
        if chain:
            found.append(
                f"{row['setting']}: the pair's best static chain ({row['best']}) reaches {times(chain['speedup'])}."
            )
    return found
