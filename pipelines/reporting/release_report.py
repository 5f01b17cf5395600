"""What would be released: the fastest decoder found at every sampling setting, and the gate's verdict on bundles.

    tuned      the winner of successive halving, scored on test prompts over the static chain that was fastest on validation
               prompts, unless it is that chain, and over plain decoding
    beside     the winner over the fastest arm of stage ``measure``, where both decoded: on each document the one that
               was fastest beside plain decoding on all others, as the best of many on the very prompts it is scored on owes some of
               that to luck. Plain decoding, which both timed, says how fast the machine was in each
    verdicts   what the gate says of each bundle: gains over all rivals, guardrails, and the smallest gain that would pass

Intervals of what was tuned are by bootstrap over documents, those of verdicts by jackknife.
"""

from typing import Any

import pandas as pd

from pipelines.evidence.estimate import Estimate
from pipelines.measuring.names import PLAIN, on_virtual_clock
from pipelines.promotion.verdict import INCONCLUSIVE, PASSED, REFUSED, lines
from pipelines.reporting.decoding_arms import DecodingArms
from pipelines.reporting.headline import percent, times
from pipelines.reporting.release_folder import ReleaseResults
from pipelines.reporting.statistics import Interval, PairedBootstrap, less_one

BLOCK = ["prompt", "repeat"]  # at one sampling setting
VERDICTS = {
    PASSED: "The gate would let {} pass",
    REFUSED: "The gate would refuse {}",
    INCONCLUSIVE: "On {} the evidence is inconclusive",
}


class ReleaseReport:
    """Builds the records of ``quality.json`` (which bundles were judged) and ``timing.json`` (all the rest)."""

    def __init__(self, results: ReleaseResults, replicates: int, seed: int) -> None:
        self.results = results
        self.replicates, self.seed = replicates, seed

    def quality(self) -> dict[str, Any]:
        """Names of the bundles that were tried."""
        return {"tried": list(self.results.verdicts)}

    def timing(self) -> dict[str, Any]:
        """What was tuned, by sampling setting, and the verdicts by bundle."""
        return {
            "tuned": [self._tuned(choice) for choice in self.results.choices],
            "verdicts": [_judged(name, record) for name, record in self.results.verdicts.items()],
        }

    def _tuned(self, choice: dict[str, Any]) -> dict[str, Any]:
        assert self.results.decoding is not None
        arms, setting = DecodingArms(self.results.decoding, self.replicates, self.seed), choice["setting"]
        winner, plain = (arms.rows(setting, arm) for arm in (choice["winner"], PLAIN))
        others = choice["static"] not in (None, choice["winner"])
        static = arms.rows(setting, choice["static"]) if others else None
        predicted = {one["name"]: one["predicted"] for one in choice["candidates"]}
        return {
            "setting": setting,
            "winner": choice["winner"],
            "static": choice["static"],
            "prompts": len(winner),
            "speedup": self._over(winner, plain),
            "gain": None if static is None else less_one(self._over(winner, static)),
            "candidates": len(predicted),
            "turns": [{"prompts": turn["prompts"], "ranking": turn["ranking"]} for turn in choice["turns"]],
            "predicted": predicted[choice["winner"]] / predicted[PLAIN],
            "beside": self._beside(setting, winner, plain),
        }

    def _beside(self, setting: str, winner: pd.DataFrame, plain: pd.DataFrame) -> dict[str, Any] | None:
        """The winner beside the fastest measured arm that is one request's real decoding; ``None`` without any."""
        table = self.results.measured
        table = table[(table["setting"] == setting) & table["prompt"].isin(winner["prompt"])]
        table = table[~table["drafter"].map(on_virtual_clock)].sort_values(BLOCK)
        if table.empty or PLAIN not in set(table["drafter"]):
            return None
        if table["document"].nunique() < 2:
            return None
        fastest = {
            document: _fastest(table[table["document"] != document]) for document in sorted(table["document"].unique())
        }
        rows = table[table["drafter"] == table["document"].map(fastest)]
        base = table[table["drafter"] == PLAIN]
        rows, base = (part.set_index(BLOCK).sort_index() for part in (rows, base))
        shared = rows.index.intersection(base.index).sort_values()
        rows, base = rows.loc[shared], base.loc[shared]
        if rows.empty:
            return None
        prompts = rows.index.get_level_values("prompt")
        winner, plain = (part.set_index("prompt").loc[prompts] for part in (winner, plain))
        machine = base["seconds"].sum() / base["tokens"].sum() * plain["tokens"].sum() / plain["seconds"].sum()
        scaled = winner.assign(seconds=winner["seconds"] * machine)
        names = sorted(set(fastest.values()))
        return {"fastest": names, "prompts": prompts.nunique(), "gain": less_one(self._over(scaled, rows))}

    def _over(self, rows: pd.DataFrame, base: pd.DataFrame) -> Interval:
        bootstrap = PairedBootstrap(list(rows["document"]), self.replicates, self.seed)
        return bootstrap.rate_ratio(rows["tokens"], rows["seconds"], base["tokens"], base["seconds"])


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


def _fastest(rows: pd.DataFrame) -> str:
    """The arm of most tokens per second over those of plain decoding, on what both decoded."""
    plain = rows[rows["drafter"] == PLAIN].set_index(BLOCK)[["tokens", "seconds"]]
    both = rows.join(plain, on=BLOCK, rsuffix="_plain", how="inner")
    sums = both.groupby("drafter")[["tokens", "seconds", "tokens_plain", "seconds_plain"]].sum()
    speedups = sums["tokens"] / sums["seconds"] / (sums["tokens_plain"] / sums["seconds_plain"])
    return str(speedups.idxmax())


def sentences(quality: dict[str, Any], timing: dict[str, Any]) -> list[str]:
    """The winners, then the verdicts."""
    found = []
    for row in timing["tuned"]:
        itself = ", itself a static chain" if row["winner"] == row["static"] else ""
        static = itself if row["gain"] is None else f", {percent(row['gain'])} over {row['static']}"
        beside = row["beside"]
        other = ""
        if beside is not None:
            names = ", ".join(beside["fastest"])
            other = f"; over the fastest of stage measure on other documents ({names}): {percent(beside['gain'])}"
        found.append(
            f"{row['setting']}: of {row['candidates']} candidates on the clock {row['winner']} was the fastest: "
            f"{times(row['speedup'])} plain decoding{static}{other}."
        )
    for verdict in timing["verdicts"]:
        failed = [check for check in verdict["checks"] if not check["passed"]]
        why = "; ".join(f"{check['name']}: {check['found']}, wanted {check['wanted']}" for check in failed)
        found.append(VERDICTS[verdict["verdict"]].format(verdict["bundle"]) + (f" ({why})." if why else "."))
    return found
