"""Decodes of arms that all decoded the same prompts: the fastest of every run's repeats, by split, sampling setting and arm."""

import pandas as pd

from pipelines.measuring.names import PLAIN, TEST, VALIDATION
from pipelines.reporting.statistics import PairedBootstrap


class DecodingArms:
    """Intervals by bootstrap over documents."""

    def __init__(self, decoding: pd.DataFrame, replicates: int, seed: int) -> None:
        self.replicates = replicates
        self.seed = seed
        fastest = decoding.groupby(["split", "setting", "prompt", "drafter"])["seconds"].idxmin()
        kept = decoding.loc[fastest.sort_values()]
        self.test = kept[kept["split"] == TEST]
        self.validation = kept[kept["split"] == VALIDATION]

    @property
    def settings(self) -> list[str]:
        """Names of the sampling settings."""
        return sorted(self.test["setting"].unique())

    def fastest(self, setting: str, family: str, in_hindsight: bool = False) -> str:
        """The family's arm of most tokens per second on validation prompts; ``in_hindsight``: on test prompts."""
        rows = self.test if in_hindsight else self.validation
        rows = rows[(rows["setting"] == setting) & (rows["family"] == family)]
        sums = rows.groupby("drafter", sort=False)[["tokens", "seconds"]].sum()
        return str((sums["tokens"] / sums["seconds"]).idxmax())

    def rows(self, setting: str, arm: str) -> pd.DataFrame:
        """An arm's test prompts, in one order for all arms."""
        rows = self.test[(self.test["setting"] == setting) & (self.test["drafter"] == arm)]
        return rows.sort_values("prompt").reset_index(drop=True)

    def bootstrap(self, setting: str) -> PairedBootstrap:
        """Over the documents of the test prompts."""
        return PairedBootstrap(list(self.rows(setting, PLAIN)["document"]), self.replicates, self.seed)
