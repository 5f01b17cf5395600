"""What is known of the delayed-tree selectors on one device: their training's records, checks of their labels, their arms on the
clock and what their steps were priced at."""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pipelines.measuring.names import PROVENANCE
from pipelines.measuring.selection.names import FIRST_ROUNDS, PRICES
from pipelines.reporting.inputs import Record
from pipelines.reporting.measured_folder import Measured
from predictors.config import parse_config
from predictors.latency.actions import Prices

RULES = ("nss", "naive_tree", "spectr", "specinfer", "khisti", "traversal", "block")


@dataclass(frozen=True)
class SelectionResults:
    """``records`` of stage ``fit`` by rule (node-by-node rules first), what was ``measured``, ``first_rounds`` at roots,
    ``prices`` and names of ``actions`` by rule, and whether time ran out on the check (``capped``)."""

    records: dict[str, Record]
    measured: Measured
    first_rounds: pd.DataFrame
    prices: dict[str, Prices]
    actions: dict[str, list[str]]
    capped: bool


def read_selection(folder: Path, fitted: dict[str, Record], measured: Measured) -> SelectionResults | None:
    """The check in ``folder`` with what was ``fitted`` and the decodes ``measured`` on the device; ``None`` if there is none."""
    if not (folder / PROVENANCE).is_file():
        return None
    found = {str(record["rule"]): record for record in fitted.values()}
    priced = json.loads((folder / PRICES).read_text())
    ordered = sorted(priced, key=lambda rule: RULES.index(rule) if rule in RULES else len(RULES))
    origin = json.loads((folder / PROVENANCE).read_text())
    return SelectionResults(
        {rule: found[rule] for rule in ordered},
        measured,
        pd.read_parquet(folder / FIRST_ROUNDS),
        {rule: parse_config(Prices, priced[rule]["prices"], f"{folder / PRICES}: {rule}") for rule in ordered},
        {rule: priced[rule]["actions"] for rule in ordered},
        origin["capped"] or measured.findings["capped"],
    )
