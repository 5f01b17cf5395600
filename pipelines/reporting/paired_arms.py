"""Arms of a measurement against each other, on the blocks where both were timed.

    ratio    Σ tokens / Σ seconds of an arm over that of another, both over the blocks (prompt, setting, repeat) that they share
    rate     tokens per second of plain decoding over all of its blocks, times the arm's ratio to it: as if the arm had been
             timed on all of them, at the pace that plain decoding had there
    median   of the shared blocks' own ratios

Intervals by bootstrap over documents. What shares no block is undefined.
"""

from collections.abc import Sequence

import pandas as pd

from pipelines.measuring.names import PLAIN
from pipelines.reporting.measured_folder import KEY, Measured
from pipelines.reporting.statistics import UNDEFINED, Interval, PairedBootstrap


class PairedArms:
    """``measured`` with its arms compared. A family's name stands for the arm that was chosen of it at each temperature."""

    def __init__(self, measured: Measured, replicates: int, seed: int) -> None:
        self.measured = measured
        self.replicates = replicates
        self.seed = seed
        self._bootstraps: dict[tuple[str, ...], PairedBootstrap] = {}
        self._by_arm = {
            str(arm): rows.set_index(KEY).sort_index() for arm, rows in measured.test.groupby("arm", sort=False)
        }

    def rows(self, arm: str, temperatures: Sequence[float] | None = None, slice_: str | None = None) -> pd.DataFrame:
        """Decodes of an arm, or of what was chosen of a family, by block in one order for all arms."""
        measured = self.measured
        parts = []
        for temperature in temperatures or measured.temperatures:
            rows = self._by_arm.get(measured.choices(temperature).get(arm, arm))
            if rows is not None and temperature in rows.index.get_level_values(0):
                parts.append(rows.loc[[temperature]])
        rows = pd.concat(parts) if parts else measured.test.set_index(KEY).iloc[:0]
        return rows if slice_ is None else rows[rows["slice"] == slice_]

    def pair(
        self, arm: str, base: str, temperatures: Sequence[float] | None = None, slice_: str | None = None
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows of both on the blocks that they share."""
        rows, others = (self.rows(name, temperatures, slice_) for name in (arm, base))
        return rows[rows.index.isin(others.index)], others[others.index.isin(rows.index)]

    def ratio(
        self, arm: str, base: str, temperatures: Sequence[float] | None = None, slice_: str | None = None
    ) -> Interval:
        """How many times as fast ``arm`` is as ``base``."""
        rows, others = self.pair(arm, base, temperatures, slice_)
        if rows.empty:
            return dict(UNDEFINED)
        rates = rows["tokens"], rows["seconds"], others["tokens"], others["seconds"]
        return self.bootstrap(rows).rate_ratio(*rates)

    def median(self, arm: str, base: str, temperatures: Sequence[float] | None = None) -> Interval:
        """The median of the shared blocks' own ratios."""
        rows, others = self.pair(arm, base, temperatures)
        if rows.empty:
            return dict(UNDEFINED)
        ratios = (rows["tokens"] / rows["seconds"]) / (others["tokens"] / others["seconds"])
        return self.bootstrap(rows).median(ratios.to_numpy())

    def rate(self, arm: str, temperatures: Sequence[float] | None = None) -> Interval:
        """Tokens per second on all that plain decoding was timed on."""
        rows, plain = self.pair(arm, PLAIN, temperatures)
        if rows.empty:
            return dict(UNDEFINED)
        whole = self.rows(PLAIN, temperatures)
        shared = whole.index.isin(rows.index)
        tokens, seconds = (rows[name].reindex(whole.index).fillna(0.0) for name in ("tokens", "seconds"))
        assert shared.sum() == len(plain)
        return self.bootstrap(whole).rate_over_all(tokens, seconds, whole["tokens"], whole["seconds"], shared)

    def bootstrap(self, rows: pd.DataFrame) -> PairedBootstrap:
        """Over the documents of ``rows``; the same object for the same rows, as drawing takes longer than summing."""
        documents = tuple(rows["document"])
        if documents not in self._bootstraps:
            self._bootstraps[documents] = PairedBootstrap(documents, self.replicates, self.seed)
        return self._bootstraps[documents]
