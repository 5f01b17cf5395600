"""Arms of a measurement against each other, on the blocks where both were timed.

    ratio    Σ tokens / Σ seconds of an arm over that of another, both over the blocks (prompt, setting, repeat) that they share
    rate     tokens per second of plain decoding over all of its blocks, times the arm's ratio to it: as if the arm had been
             timed on all of them, at the pace that plain decoding had there
    median   of the shared blocks' own ratios
    counts   block efficiency = emitted / target passes, m_excl = accepted / segments, m_incl = m_excl + 1,
             rollback rate = rolled back / levels; the prefill is outside

Intervals by bootstrap over documents. What shares no block is undefined.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipelines.measuring.names import CHAIN, PLAIN
from pipelines.reporting.measured_folder import KEY, Measured
from pipelines.reporting.statistics import UNDEFINED, Interval, PairedBootstrap, less_one

RATES = {  # of rounds: amount and cost
    "block_efficiency": ("emitted", "rounds"),
    "m_excl": ("accepted", "segments"),
    "rollback_rate": ("rolled_back", "levels"),
    "drafted_per_round": ("levels", "rounds"),
}


class PairedArms:
    """``measured`` with its arms compared. A family's name stands for the arm that was chosen of it at each sampling setting."""

    def __init__(self, measured: Measured, replicates: int, seed: int) -> None:
        self.measured = measured
        self.replicates = replicates
        self.seed = seed
        self._bootstraps: dict[tuple[str, ...], PairedBootstrap] = {}
        self._by_arm = {
            str(arm): rows.set_index(KEY).sort_index() for arm, rows in measured.test.groupby("arm", sort=False)
        }

    def rows(self, arm: str, settings: Sequence[str] | None = None, slice_: str | None = None) -> pd.DataFrame:
        """Decodes of an arm, or of what was chosen of a family, by block in one order for all arms."""
        measured = self.measured
        parts = []
        for setting in settings or measured.settings:
            rows = self._by_arm.get(measured.choices(setting).get(arm, arm))
            if rows is not None and setting in rows.index.get_level_values(0):
                parts.append(rows.loc[[setting]])
        rows = pd.concat(parts) if parts else measured.test.set_index(KEY).iloc[:0]
        return rows if slice_ is None else rows[rows["slice"] == slice_]

    def pair(
        self, arm: str, base: str, settings: Sequence[str] | None = None, slice_: str | None = None
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows of both on the blocks that they share."""
        rows, others = (self.rows(name, settings, slice_) for name in (arm, base))
        return rows[rows.index.isin(others.index)], others[others.index.isin(rows.index)]

    def ratio(self, arm: str, base: str, settings: Sequence[str] | None = None, slice_: str | None = None) -> Interval:
        """How many times as fast ``arm`` is as ``base``."""
        rows, others = self.pair(arm, base, settings, slice_)
        if rows.empty:
            return dict(UNDEFINED)
        rates = rows["tokens"], rows["seconds"], others["tokens"], others["seconds"]
        return self.bootstrap(rows).rate_ratio(*rates)

    def gain(
        self, arm: str, base: str = CHAIN, settings: Sequence[str] | None = None, slice_: str | None = None
    ) -> Interval:
        """Its ratio to ``base``, less one."""
        return less_one(self.ratio(arm, base, settings, slice_))

    def median(self, arm: str, base: str, settings: Sequence[str] | None = None) -> Interval:
        """The median of the shared blocks' own ratios."""
        rows, others = self.pair(arm, base, settings)
        if rows.empty:
            return dict(UNDEFINED)
        ratios = (rows["tokens"] / rows["seconds"]) / (others["tokens"] / others["seconds"])
        return self.bootstrap(rows).median(ratios.to_numpy())

    def rate(self, arm: str, settings: Sequence[str] | None = None) -> Interval:
        """Tokens per second on all that plain decoding was timed on."""
        rows, plain = self.pair(arm, PLAIN, settings)
        if rows.empty:
            return dict(UNDEFINED)
        whole = self.rows(PLAIN, settings)
        shared = whole.index.isin(rows.index)
        tokens, seconds = (rows[name].reindex(whole.index).fillna(0.0) for name in ("tokens", "seconds"))
        assert shared.sum() == len(plain)
        return self.bootstrap(whole).rate_over_all((tokens, seconds), (whole["tokens"], whole["seconds"]), shared)

    def speed(self, arm: str, settings: Sequence[str]) -> dict[str, Interval]:
        """Tokens per second, speed-up over plain decoding, and gain over the best static chain."""
        return {
            "tokens_per_second": self.rate(arm, settings),
            "speedup": self.ratio(arm, PLAIN, settings),
            "gain": self.gain(arm, CHAIN, settings),
        }

    def of(self, rows: pd.DataFrame, amount: str, cost: str) -> Interval:
        """Σ of one column over Σ of another."""
        return dict(UNDEFINED) if rows.empty else self.bootstrap(rows).rate(rows[amount], rows[cost])

    def counts(self, rows: pd.DataFrame) -> dict[str, Interval]:
        """What `RATES` say of rounds, and ``m_incl``."""
        made = {name: self.of(rows, *rate) for name, rate in RATES.items()}
        return made | {"m_incl": {end: None if at is None else at + 1 for end, at in made["m_excl"].items()}}

    def bootstrap(self, rows: pd.DataFrame) -> PairedBootstrap:
        """Over the documents of ``rows``; the same object for the same rows, as drawing takes longer than summing."""
        documents = tuple(rows["document"])
        if documents not in self._bootstraps:
            self._bootstraps[documents] = PairedBootstrap(documents, self.replicates, self.seed)
        return self._bootstraps[documents]


def equal_texts(rows: pd.DataFrame) -> dict[str, int] | None:
    """Greedy texts equal to plain decoding's; ``None`` where there is no greedy text. In bfloat16 near-ties flip between pass
    widths."""
    greedy: Any = rows["equals_plain"].dropna()
    return {"equal": int(greedy.sum()), "texts": len(greedy)} if len(greedy) else None
