"""Which rule that stops drafting pays: what its model knows of held-out tokens, what replay promises, and what the clock says.

    measured   tokens / seconds of real decodes, paired by block, over the chain that was fastest on validation prompts, and over
               the one that was on the test prompts themselves (hindsight): a rule that pays beats both; forks also over the
               static fork that was fastest on validation prompts
    replayed   Σ tokens / Σ seconds over drafts that nothing cut short, from the latency profile: the model's rule, the paper's,
               and a perfect one's, which is the most that any stop rule can bring

Intervals by bootstrap over documents.
"""

from typing import Any, Self

from matplotlib.figure import Figure

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
from pipelines.reporting.inputs import Inputs, Section
from pipelines.reporting.intervals import known, percent, surely_above
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.paired_arms import PairedArms
from pipelines.reporting.stopping_plots import stop_figures

TUNED = (CHAIN, CONFIDENCE, FORK, CONFIG)  # families whose setting is chosen on validation prompts
SHOWN = (PLAIN_FAMILY, CHAIN, CONFIDENCE, RULE, FORK, CONFIG, DYNAMIC)


class StoppingReport(Section):
    """Builds the records of ``quality.json`` (what models know, what replay promises) and ``timing.json`` (times); ``records`` of
    stage ``fit`` by model."""

    def __init__(self, measured: Measured, records: dict[str, dict[str, Any]], replicates: int, seed: int) -> None:
        shown = [arm for arm, family in measured.families.items() if family in SHOWN and arm != HF_FORWARD]
        self.measured = measured.only(shown)
        self.records = records
        self.paired = PairedArms(self.measured, replicates, seed)

    def figures(self, quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        return stop_figures(quality, timing)

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        report = cls(inputs.measured, inputs.fitted("stop"), *inputs.drawn)
        return None if report.empty else report

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
            "settings": [self.setting(setting, chosen_only=True) for setting in self.measured.settings],
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

    def setting(self, setting: str, chosen_only: bool) -> dict[str, Any]:
        """All arms of a sampling setting, or of tuned families only what was fastest on validation prompts."""
        families, best = self.measured.families, self.measured.choices(setting)
        timed = self.measured.arms(setting)
        chains = [arm for arm in timed if families[arm] == CHAIN]
        speeds = {arm: self.paired.ratio(arm, PLAIN, [setting])["value"] or 0.0 for arm in chains}
        hindsight = max(chains, key=speeds.__getitem__)
        shown = [
            arm for arm in timed if not chosen_only or families[arm] not in TUNED or arm == best.get(families[arm])
        ]
        shown.sort(key=lambda arm: SHOWN.index(families[arm]))
        arms = [self._arm(setting, arm, families[arm], hindsight) for arm in shown]
        return {"setting": setting, "best": best, "hindsight": hindsight, "arms": arms}

    def _arm(self, setting: str, arm: str, family: str, hindsight: str) -> dict[str, Any]:
        rows = self.paired.rows(arm, [setting])
        return {
            "family": family,
            "arm": arm,
            **self.paired.speed(arm, [setting]),
            "gain_over_hindsight": self.paired.gain(arm, hindsight, [setting]),
            "gain_over_fork": self.paired.gain(arm, FORK, [setting]) if family in TREES else None,
            **self.paired.counts(rows),
            "deciding": self.paired.of(rows, "seconds_controller", "seconds_rounds"),
            "bypassed": float(rows["bypassed"].sum() / max(1, rows["rounds"].sum())),
        }

    @staticmethod
    def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
        """Which rule pays, by sampling setting, and how much a perfect one could bring."""
        found = []
        for row in timing["settings"]:
            gains = ("gain", "gain_over_hindsight")
            rules = [arm for arm in row["arms"] if arm["family"] in (CONFIDENCE, RULE)]
            rules = [arm for arm in rules if all(known(arm[gain]) for gain in gains)]
            if not rules:
                continue
            sure = [arm for arm in rules if all(surely_above(arm[gain]) for gain in gains)]
            shown = sure or [max(rules, key=lambda arm: arm["gain"]["value"])]
            worth = ", ".join(
                f"{arm['arm']} {percent(arm['gain'])} over {row['best'][CHAIN]} and {percent(arm['gain_over_hindsight'])} over "
                f"{row['hindsight']}"
                for arm in shown
            )
            verdict = "these surely pay" if sure else "none surely pays; the fastest gains"
            found.append(
                f"{row['setting']}, over the static chain that validation prompts chose ({row['best'][CHAIN]}) and the one that "
                f"was fastest here ({row['hindsight']}): {verdict}: {worth}."
            )
        for model in quality["models"][:1]:
            perfect = ", ".join(
                f"{name} {percent(part['policies']['perfect']['gain'])}" for name, part in model["parts"].items()
            )
            found.append(f"The oracle among stop rules would bring, in replay: {perfect}.")
        return found
