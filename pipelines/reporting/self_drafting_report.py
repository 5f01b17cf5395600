"""What methods without a draft model bring: counts of their passes, and their speed beside a draft model and prompt lookup.

    speed-up   tokens / seconds over plain decoding, our own loop; of Hugging Face's arms the same, and over its own ``generate``
    counts     DE, HR and AL of `predictors.rounds`; guessed and candidate tokens of a pass
    upkeep     seconds spent on candidates, guesses and pool, of all seconds behind the prefill

Real decodes, the fastest of their repeats, interleaved and paired by prompt. Intervals by bootstrap over documents.
"""

from typing import Any

import pandas as pd

from pipelines.measuring.names import HF_PLAIN, PLAIN
from pipelines.measuring.names import CALIBRATED, CHAIN, GIVEN, HUGGING_FACE, HF_LOOKUP
from pipelines.reporting.bars import SHARE, bar_row
from pipelines.reporting.decoding_arms import DecodingArms
from pipelines.reporting.self_drafting_folder import SelfDraftingResults
from pipelines.reporting.statistics import Interval, PairedBootstrap, less_one

OWN = (CALIBRATED, GIVEN)
BASES = ("progressive_tree", "lookahead", "self_draft", HF_LOOKUP)


class SelfDraftingReport(DecodingArms):
    """Builds the records of ``quality.json`` (counts, what was chosen) and ``timing.json`` (times)."""

    def __init__(self, results: SelfDraftingResults, replicates: int, seed: int) -> None:
        super().__init__(results.decoding, replicates, seed)
        self.results = results

    def quality(self) -> dict[str, Any]:
        """What was chosen for every method, what its ways are worth by the profile, and counts of measured passes."""
        records = self.results.records
        return {
            "chosen": {method: record["chosen"] for method, record in records.items()},
            "ways": [row for record in records.values() for row in record["rows"]],
            "counts": [
                {"setting": setting, "arm": arm, **_counts(self.rows(setting, arm))}
                for setting in self.settings
                for family, arm in self._arms(setting)
                if family in OWN
            ],
        }

    def timing(self) -> dict[str, Any]:
        """Measured speeds by sampling setting and arm, and by slice."""
        return {
            "settings": [self._setting(setting) for setting in self.settings],
            "prompts": int(self.test["prompt"].nunique()),
            "capped": self.results.origin["capped"],
            "bars": [
                bar_row(
                    f"{setting}: upkeep of {arm}, share of a step", self._upkeep(setting, arm), 0.1, SHARE, at_most=True
                )
                for setting in self.settings
                for family, arm in self._arms(setting)
                if family in OWN
            ],
        }

    def _setting(self, setting: str) -> dict[str, Any]:
        chains = set(self.validation["family"])
        best = self.fastest(setting, CHAIN) if CHAIN in chains else None
        arms = [
            self._arm(setting, family, arm, best)
            for family, arm in self._arms(setting)
            if family != CHAIN or arm == best
        ]
        slices = sorted(self.test["slice"].unique())
        shown = [arm["arm"] for arm in arms if arm["arm"] not in (PLAIN, HF_PLAIN)]
        return {
            "setting": setting,
            "best": best,
            "arms": arms,
            "slices": {name: {arm: self._slice(setting, arm, name) for arm in shown} for name in slices},
        }

    def _arms(self, setting: str) -> list[tuple[str, str]]:
        """Families and names of the arms that were timed."""
        order = (PLAIN, CHAIN, CALIBRATED, GIVEN, HUGGING_FACE)
        timed = self.test[self.test["setting"] == setting][["family", "drafter"]].drop_duplicates()
        names = [(str(family), str(arm)) for family, arm in timed.itertuples(index=False)]
        return sorted(names, key=lambda name: order.index(name[0]))

    def _arm(self, setting: str, family: str, arm: str, best: str | None) -> dict[str, Any]:
        rows, bootstrap = self.rows(setting, arm), self.bootstrap(setting)
        own = family in OWN
        return {
            "family": family,
            "arm": arm,
            "tokens_per_second": bootstrap.rate(rows["tokens"], rows["seconds"]),
            "speedup": self._over(setting, arm, PLAIN),
            "over_hugging_face": self._over(setting, arm, HF_PLAIN),
            "gain": None if best is None else less_one(self._over(setting, arm, best)),
            "over": self._over_others(setting, arm),
            "upkeep": self._upkeep(setting, arm) if own else None,
            "milliseconds": _milliseconds(rows) if own or arm == PLAIN else None,
        }

    def _slice(self, setting: str, arm: str, name: str) -> dict[str, Any]:
        """The same ratios in one slice."""
        return {"speedup": self._over(setting, arm, PLAIN, name), "over": self._over_others(setting, arm, name)}

    def _over_others(self, setting: str, arm: str, slice_: str | None = None) -> dict[str, Interval | None]:
        """An arm over each of `BASES`; ``None`` for itself and for one that was not timed."""
        timed = {name for _, name in self._arms(setting)} - {arm}
        return {base: self._over(setting, arm, base, slice_) if base in timed else None for base in BASES}

    def _upkeep(self, setting: str, arm: str) -> Interval:
        rows = self.rows(setting, arm)
        return self.bootstrap(setting).rate(rows["seconds_draft"], rows["seconds_rounds"])

    def _over(self, setting: str, arm: str, base: str, slice_: str | None = None) -> Interval:
        """Tokens per second of an arm over those of another, over all prompts or those of a slice."""
        rows, others = (
            part if slice_ is None else part[part["slice"] == slice_]
            for part in (self.rows(setting, arm), self.rows(setting, base))
        )
        bootstrap = PairedBootstrap(list(others["document"]), self.replicates, self.seed)
        return bootstrap.rate_ratio(rows["tokens"], rows["seconds"], others["tokens"], others["seconds"])


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
        speeds = ", ".join(f"{arm['arm']} {_times(arm['speedup'])}" for arm in arms)
        lookup = next((arm for arm in row["arms"] if arm["arm"] == HF_LOOKUP), None)
        beside = ""
        if lookup:
            own = _times(lookup["over_hugging_face"])
            beside = f", Hugging Face prompt lookup {_times(lookup['speedup'])}, which is {own} over its own generate"
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
                f"{row['setting']}: the pair's best static chain ({row['best']}) reaches {_times(chain['speedup'])}."
            )
    return found


def _times(value: Interval) -> str:
    return f"{value['value']:.2f}x ({value['low']:.2f} to {value['high']:.2f})"
