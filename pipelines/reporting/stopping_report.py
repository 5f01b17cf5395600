"""Which rule that stops drafting pays: what its model knows of held-out tokens, what replay promises, and what the clock says.

    measured   tokens / seconds of real decodes, paired by block, over the chain that was fastest on validation prompts, and over
               the one that was on the test prompts themselves (hindsight): a rule that pays beats both; forks also over the
               static fork that was fastest on validation prompts
    replayed   Σ tokens / Σ seconds over drafts that nothing cut short, from the latency profile: the model's rule, the paper's,
               and a perfect one's, which is the most that any stop rule can bring

Intervals by bootstrap over documents.
"""

from typing import Any

from pipelines.measuring.names import (
    CHAIN,
    CONFIDENCE,
    CONFIG,
    DYNAMIC,
    FORK,
    HF_FORWARD,
    PLAIN,
    PLAIN_FAMILY,
    RULE,
    TREES,
)
from pipelines.reporting.headline import percent
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.paired_arms import PairedArms
from pipelines.reporting.statistics import less_one

TUNED = (CHAIN, CONFIDENCE, FORK, CONFIG)  # families whose setting is chosen on validation prompts
SHOWN = (PLAIN_FAMILY, CHAIN, CONFIDENCE, RULE, FORK, CONFIG, DYNAMIC)


class StoppingReport:
    """Builds the records of ``quality.json`` (what models know, what replay promises) and ``timing.json`` (times); ``records`` of
    the stopper stage by model."""

    def __init__(self, measured: Measured, records: dict[str, dict[str, Any]], replicates: int, seed: int) -> None:
        shown = [arm for arm, family in measured.families.items() if family in SHOWN and arm != HF_FORWARD]
        self.measured = measured.only(shown)
        self.records = records
        self.paired = PairedArms(self.measured, replicates, seed)

    @property
    def empty(self) -> bool:
        """Whether no rule and no tree was timed."""
        return not {RULE, *TREES} & set(self.measured.families.values())

    def quality(self) -> dict[str, Any]:
        """By model: calibration and ranking of tested tokens, bias of the product along the draft, replayed worth."""
        names = ("tokens", "product_bias", "parts", "settings", "documents", "rounds")
        return {
            "models": [
                {"model": model, **{name: record[name] for name in names}} for model, record in self.records.items()
            ]
        }

    def timing(self) -> dict[str, Any]:
        """Measured speeds by sampling setting and arm."""
        return {
            "settings": [self.setting(temperature, chosen_only=True) for temperature in self.measured.temperatures],
            "prompts": int(self.measured.test["prompt"].nunique()),
            "beta": self._threshold,
            "capped": self.measured.findings["capped"],
        }

    @property
    def _threshold(self) -> float | None:
        """Below which every path's chance ends a dynamic fork, where the table of arms names it."""
        rows = [row for row in self.measured.origin["parameters"].get("arms", []) if row["family"] == DYNAMIC]
        known = [((row.get("decoder") or {}).get("controller") or {}).get("threshold") for row in rows]
        return next((threshold for threshold in known if threshold is not None), None)

    def setting(self, temperature: float, chosen_only: bool) -> dict[str, Any]:
        """All arms of a sampling setting, or of tuned families only what was fastest on validation prompts."""
        families, best = self.measured.families, self.measured.choices(temperature)
        timed = self.measured.arms(temperature)
        chains = [arm for arm in timed if families[arm] == CHAIN]
        speeds = {arm: self.paired.ratio(arm, PLAIN, [temperature])["value"] or 0.0 for arm in chains}
        hindsight = max(chains, key=speeds.__getitem__)
        shown = [
            arm for arm in timed if not chosen_only or families[arm] not in TUNED or arm == best.get(families[arm])
        ]
        shown.sort(key=lambda arm: SHOWN.index(families[arm]))
        arms = [self._arm(temperature, arm, families[arm], hindsight) for arm in shown]
        return {"setting": f"T={temperature:g}", "best": best, "hindsight": hindsight, "arms": arms}

    def _arm(self, temperature: float, arm: str, family: str, hindsight: str) -> dict[str, Any]:
        at = [temperature]
        rows = self.paired.rows(arm, at)
        bootstrap = self.paired.bootstrap(rows)
        return {
            "family": family,
            "arm": arm,
            "tokens_per_second": self.paired.rate(arm, at),
            "speedup": self.paired.ratio(arm, PLAIN, at),
            "gain": less_one(self.paired.ratio(arm, CHAIN, at)),
            "gain_over_hindsight": less_one(self.paired.ratio(arm, hindsight, at)),
            "gain_over_fork": less_one(self.paired.ratio(arm, FORK, at)) if family in TREES else None,
            "block_efficiency": bootstrap.rate(rows["emitted"], rows["rounds"]),
            "drafted_per_round": bootstrap.rate(rows["levels"], rows["rounds"]),
            "rollback_rate": bootstrap.rate(rows["rolled_back"], rows["levels"]),
            "deciding": bootstrap.rate(rows["seconds_controller"], rows["seconds_rounds"]),
            "bypassed": float(rows["bypassed"].sum() / max(1, rows["rounds"].sum())),
        }


def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
    """Which rule pays, by sampling setting, and how much a perfect one could bring."""
    found = []
    for row in timing["settings"]:
        gains = ("gain", "gain_over_hindsight")
        rules = [arm for arm in row["arms"] if arm["family"] in (CONFIDENCE, RULE)]
        rules = [arm for arm in rules if all(arm[gain]["low"] is not None for gain in gains)]
        if not rules:
            continue
        sure = [arm for arm in rules if all(arm[gain]["low"] > 0 for gain in gains)]
        shown = sure or [max(rules, key=lambda arm: arm["gain"]["value"])]
        worth = ", ".join(
            f"{arm['arm']} {percent(arm['gain'])} over {row['best'][CHAIN]} and {percent(arm['gain_over_hindsight'])} over "
            f"{row['hindsight']}"
            for arm in shown
        )
        verdict = "these surely pay" if sure else "none surely pays; the fastest gains"
        found.append(
            f"{row['setting']}, over the static chain that validation prompts chose ({row['best'][CHAIN]}) and the one that was "
            f"fastest here ({row['hindsight']}): {verdict}: {worth}."
        )
    for model in quality["models"][:1]:
        perfect = ", ".join(
            f"{name} {percent(part['policies']['perfect']['gain'])}" for name, part in model["parts"].items()
        )
        found.append(f"A perfect stop rule, which knows what will be accepted, would bring, in replay: {perfect}.")
    return found
