"""What would be released: the fastest decoder found at every sampling setting, and the gate's verdict on bundles.

tuned      the winner by replay and clock, scored on test prompts over the static chain that was fastest on validation prompts,
           unless it is that chain, and over plain decoding; intervals by jackknife over documents (`pipelines.evidence`)
verdicts   what the gate says of each bundle: gains over all rivals, guardrails, and the smallest gain that would pass
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from matplotlib.figure import Figure

from pipelines.evidence.estimate import Estimate
from pipelines.measuring.names import PLAIN
from pipelines.measuring.tuning.names import CHOICES
from pipelines.promotion.names import VERDICT
from pipelines.promotion.verdict import INCONCLUSIVE, PASSED, REFUSED, lines
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.intervals import percent, times

VERDICTS = {
    PASSED: "The gate would let {} pass",
    REFUSED: "The gate would refuse {}",
    INCONCLUSIVE: "On {} the evidence is inconclusive",
}


@dataclass(frozen=True)
class ReleaseResults:
    """``choices`` of tuning (none: not tuned), and ``verdicts`` by bundle."""

    choices: list[dict[str, Any]]
    verdicts: dict[str, dict[str, Any]]


def read_release(tuning: Path, trials: Path, device: str) -> ReleaseResults | None:
    """Below ``tuning`` and, by bundle, below ``trials``; ``None`` if neither has been on this device."""
    tuned = (tuning / device / CHOICES).is_file()
    choices = json.loads((tuning / device / CHOICES).read_text()) if tuned else []
    verdicts = {
        path.parent.parent.name: json.loads(path.read_text()) for path in sorted(trials.glob(f"*/{device}/{VERDICT}"))
    }
    return ReleaseResults(choices, verdicts) if choices or verdicts else None


class ReleaseReport:
    """Builds the records of ``quality.json`` (which bundles were judged) and ``timing.json`` (all the rest)."""

    def __init__(self, results: ReleaseResults) -> None:
        self.results = results

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        results = read_release(inputs.data / "tuning", inputs.data / "trials", inputs.device)
        return None if results is None else cls(results)

    @staticmethod
    def figures(quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        """None."""
        return {}

    def quality(self) -> dict[str, Any]:
        """Names of the bundles that were tried."""
        return {"tried": list(self.results.verdicts)}

    def timing(self) -> dict[str, Any]:
        """What was tuned, by sampling setting, and the verdicts by bundle."""
        return {
            "tuned": [self._tuned(choice) for choice in self.results.choices],
            "verdicts": [_judged(name, record) for name, record in self.results.verdicts.items()],
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


def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
    """The winners, then the verdicts."""
    found = []
    for row in timing["tuned"]:
        itself = ", itself a static chain" if row["winner"] == row["static"] else ""
        static = itself if row["gain"] is None else f", {percent(row['gain'])} over {row['static']}"
        speedup = "the fastest" if row["speedup"] is None else f"the fastest: {times(row['speedup'])} plain decoding"
        unscored = "" if row["scored"] else "; no time was left to score it"
        found.append(
            f"{row['setting']}: of {row['candidates']} candidates on the clock {row['winner']} was {speedup}{static}{unscored}."
        )
    for verdict in timing["verdicts"]:
        failed = [check for check in verdict["checks"] if not check["passed"]]
        why = "; ".join(f"{check['name']}: {check['found']}, wanted {check['wanted']}" for check in failed)
        found.append(VERDICTS[verdict["verdict"]].format(verdict["bundle"]) + (f" ({why})." if why else "."))
    return found
