"""Which rule that stops drafting pays: what its model knows of held-out tokens, what replay promises, and what the clock says.

    measured   tokens / seconds of real decodes, the fastest of their repeats, interleaved and paired by prompt, over the chain
               that was fastest on validation prompts, and over the one that was on the test prompts themselves (hindsight): a
               rule that pays beats both; forks also over the static fork that was fastest on validation prompts
    replayed   Σ tokens / Σ seconds over drafts that nothing cut short, from the latency profile: the model's rule, the paper's,
               and a perfect one's, which is the most that any stop rule can bring

Intervals by bootstrap over documents.
"""

from typing import Any

import pandas as pd

from pipelines.measuring.names import PLAIN
from pipelines.measuring.names import CHAIN, CONFIDENCE, CONFIG, DYNAMIC, FORK, RULE, TREES
from pipelines.reporting.decoding_arms import DecodingArms
from pipelines.reporting.statistics import Interval, less_one
from pipelines.reporting.stopping_folder import StoppingResults

TUNED = (CHAIN, CONFIDENCE, FORK, CONFIG)  # families whose setting is chosen on validation prompts


class StoppingReport(DecodingArms):
    """Builds the records of ``quality.json`` (what models know, what replay promises) and ``timing.json`` (times)."""

    def __init__(self, results: StoppingResults, replicates: int, seed: int) -> None:
        super().__init__(results.decoding, replicates, seed)
        self.results = results

    def quality(self) -> dict[str, Any]:
        """By model: calibration and ranking of tested tokens, bias of the product along the draft, replayed worth."""
        names = ("tokens", "product_bias", "parts", "settings", "documents", "rounds")
        return {
            "models": [
                {"model": model, **{name: record[name] for name in names}}
                for model, record in self.results.records.items()
            ]
        }

    def timing(self) -> dict[str, Any]:
        """Measured speeds by sampling setting and arm."""
        return {
            "settings": [{"setting": setting, **self.setting(setting, chosen_only=True)} for setting in self.settings],
            "prompts": int(self.test["prompt"].nunique()),
            "beta": self.results.origin["parameters"]["beta"],
            "capped": self.results.origin["capped"],
        }

    def setting(self, setting: str, chosen_only: bool) -> dict[str, Any]:
        """All arms of a sampling setting, or of tuned families only what was fastest on validation prompts."""
        best = {family: self.fastest(setting, family) for family in TUNED if family in set(self.validation["family"])}
        chains = self.test[(self.test["setting"] == setting) & (self.test["family"] == CHAIN)]
        sums = chains.groupby("drafter", sort=False)[["tokens", "seconds"]].sum()
        hindsight = str((sums["tokens"] / sums["seconds"]).idxmax())
        shown = self.test[self.test["setting"] == setting][["family", "drafter"]].drop_duplicates()
        arms = [
            self._arm(setting, family, drafter, best, hindsight)
            for family, drafter in shown.itertuples(index=False)
            if not chosen_only or drafter == PLAIN or family not in TUNED or drafter == best[family]
        ]
        order = (CHAIN, CONFIDENCE, RULE, FORK, CONFIG, DYNAMIC)
        arms.sort(key=lambda arm: order.index(arm["family"]) if arm["family"] in order else -1)
        return {"best": best, "hindsight": hindsight, "arms": arms}

    def _arm(self, setting: str, family: str, drafter: str, best: dict[str, str], hindsight: str) -> dict[str, Any]:
        rows, chain, fork = (self.rows(setting, name) for name in (drafter, best[CHAIN], best[FORK]))
        plain, bootstrap = self.rows(setting, PLAIN), self.bootstrap(setting)

        def over(base: pd.DataFrame) -> Interval:
            return bootstrap.rate_ratio(rows["tokens"], rows["seconds"], base["tokens"], base["seconds"])

        return {
            "family": family,
            "arm": drafter,
            "tokens_per_second": bootstrap.rate(rows["tokens"], rows["seconds"]),
            "speedup": over(plain),
            "gain": less_one(over(chain)),
            "gain_over_hindsight": less_one(over(self.rows(setting, hindsight))),
            "gain_over_fork": less_one(over(fork)) if family in TREES else None,
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
        rules = [arm for arm in row["arms"] if arm["family"] in (CONFIDENCE, RULE)]
        sure = [arm for arm in rules if all(arm[gain]["low"] > 0 for gain in ("gain", "gain_over_hindsight"))]
        shown = sure or [max(rules, key=lambda arm: arm["gain"]["value"])]
        worth = ", ".join(
            f"{arm['arm']} {_percent(arm['gain'])} over {row['best'][CHAIN]} and {_percent(arm['gain_over_hindsight'])} over "
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
            f"{name} {_percent(part['policies']['perfect']['gain'])}" for name, part in model["parts"].items()
        )
        found.append(f"A perfect stop rule, which knows what will be accepted, would bring, in replay: {perfect}.")
    return found


def _percent(value: Interval) -> str:
    return f"{value['value']:+.1%} ({value['low']:+.1%} to {value['high']:+.1%})"
