"""A latency profile refined by the rounds that were timed in place: one table of prices for calibration, replay and evidence.

    cell' = factor of its component · cell,    verification' = factor · verification + rest

from the undisturbed profile, which the factors correct. What a decode spends between its phases is a price a round, and every
round has one verification. Tables of other components stay as they are.
"""

from dataclasses import replace

import numpy as np

from pipelines.evidence.prices import PriceFit, target_component
from predictors.latency.actions import undisturbed
from predictors.latency.profile import LatencyProfile
from predictors.latency.tables import LatencyTable

TABLES = {
    "draft": "draft",
    "chain_drawing": "draft",
    "chain_verification": "verify",
    "target_prefill": "prefill",
    "draft_prefill": "prefill",
    "predictor": "question",
}


def refined(profile: LatencyProfile, fit: PriceFit) -> LatencyProfile:
    """The profile at the prices of ``fit``."""
    quiet, factors = undisturbed(profile), fit.to_record()
    tables = dict(quiet.tables)
    for name, component in TABLES.items():
        if name in tables:
            tables[name] = _changed(tables[name], np.array(factors[component]))
    if "chain_verification" in tables:
        tables["chain_verification"] = _changed(tables["chain_verification"], np.array(1.0), factors["rest"])
    if "target" in tables:
        table = tables["target"].with_axes(("tokens", "context"))
        rows = [factors[target_component(tokens)] for tokens in table.axes["tokens"]]
        tables["target"] = _changed(table, np.array(rows)[:, None])
    return replace(quiet, tables=tables)


def _changed(table: LatencyTable, factor: np.ndarray, more: float = 0.0) -> LatencyTable:
    seconds = table.low * factor + more
    return LatencyTable(table.axes, seconds, seconds, seconds, table.calls)
