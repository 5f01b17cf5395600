"""What would be released: the fastest decoder found at every sampling setting, and the gate's verdict on bundles.

tuned      the winner by replay and clock, scored on test prompts over the static chain that was fastest on validation prompts,
           unless it is that chain, and over plain decoding; intervals by jackknife over documents (`pipelines.evidence`)
verdicts   what the gate says of each bundle: gains over all rivals, guardrails, and the smallest gain that would pass
"""

import json
import math
from typing import Any, Self

from pipelines.evidence.estimate import Estimate
from pipelines.measuring.names import PLAIN
from pipelines.measuring.tuning.names import CHOICES
from pipelines.promotion.names import VERDICT
from pipelines.promotion.verdict import INCONCLUSIVE, PASSED, REFUSED, lines, reasons
from pipelines.reporting.inputs import Inputs, Record, Section, read_record
from pipelines.reporting.intervals import percent, times

VERDICTS = {
    PASSED: "The gate would let {} pass",
    REFUSED: "The gate would refuse {}",
    INCONCLUSIVE: "On {} the evidence is inconclusive",
}


class ReleaseReport(Section):
    """Builds the records of ``quality.json`` (which bundles were judged) and ``timing.json`` (all the rest), from ``choices`` of
    tuning and ``verdicts`` by bundle."""

    def __init__(self, choices: list[Record], verdicts: dict[str, Record]) -> None:
        self.choices = choices
        self.verdicts = verdicts

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        """``None`` if nothing was tuned or tried on this device."""
        tuned = inputs.of("tuning") / CHOICES
        trials = sorted((inputs.data / "trials").glob(f"*/{inputs.device}/{VERDICT}"))
        if not tuned.is_file() and not trials:
            return None
        choices = json.loads(tuned.read_text()) if tuned.is_file() else []
        return cls(choices, {path.parent.parent.name: read_record(path) for path in trials})

    def quality(self) -> dict[str, Any]:
        """Names of the bundles that were tried."""
        return {"tried": list(self.verdicts)}

    def timing(self) -> dict[str, Any]:
        """What was tuned, by sampling setting, and the verdicts by bundle."""
        return {
            "tuned": [self._tuned(choice) for choice in self.choices],
            "verdicts": [_judged(name, record) for name, record in self.verdicts.items()],
        }

    @staticmethod
    def _tuned(choice: dict[str, Any]) -> dict[str, Any]:
        candidates = {one["name"]: one for one in choice["candidates"]}
        winner, score = candidates[choice["winner"]], choice["score"] or {}
        over_plain, over_static = (score.get(name) for name in (PLAIN, choice["static"]))
        return {
            "setting": choice["setting"],
            "winner": choice["winner"],
            "static": choice["static"],
            "scored": choice["score"] is not None,
            "prompts": max((one["prompts"] for one in score.values()), default=0),
            "speedup": None if over_plain is None else {name: 1 + value for name, value in over_plain["gain"].items()},
            "gain": None if over_static is None else over_static["gain"],
            "candidates": len(candidates),
            "predicted": math.exp(winner["speedup"]["predicted"]),
            "validation": math.exp(winner["speedup"]["value"]),
        }

    @staticmethod
    def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
        """The winners, then the verdicts."""
        found = []
        for row in timing["tuned"]:
            itself = ", itself a static chain" if row["winner"] == row["static"] else ""
            static = itself if row["gain"] is None else f", {percent(row['gain'])} over {row['static']}"
            speedup = (
                "the fastest" if row["speedup"] is None else f"the fastest: {times(row['speedup'])} plain decoding"
            )
            unscored = "" if row["scored"] else "; no time was left to score it"
            found.append(
                f"{row['setting']}: of {row['candidates']} candidates on the clock {row['winner']} was "
                f"{speedup}{static}{unscored}."
            )
        for verdict in timing["verdicts"]:
            why = reasons(verdict)
            found.append(VERDICTS[verdict["verdict"]].format(verdict["bundle"]) + (f" ({why})." if why else "."))
        return found


def _judged(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """A verdict, the gains that it rests on, and its five lines."""
    evidence = record["evidence"]
    gains, settings = (
        {key: Estimate(**one).interval() | {"basis": one["basis"]} for key, one in evidence[part].items()}
        for part in ("gains", "settings")
    )
    return {
        "bundle": name,
        "verdict": record["verdict"],
        "passed": record["passed"],
        "checks": record["checks"],
        "lines": lines(record),
        "reference": evidence["reference"],
        "gains": gains,
        "settings": settings,
        "slices": evidence["slices"],
        "smallest_gain": record["smallest_gain"],
    }
