"""A finished measurement of delayed-tree selectors on one device, and what their training says of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import PROVENANCE
from pipelines.measuring.selection.names import DECODING, PRICES, ROUNDS
from predictors.config import parse_config
from predictors.latency.actions import Prices

RULES = ("nss", "naive_tree", "spectr", "specinfer", "khisti", "traversal", "block")


@dataclass(frozen=True)
class SelectionResults:
    """``records`` of the selector stage by rule (node-by-node rules first), timed ``decoding``, first ``rounds`` at roots,
    ``prices`` and names of ``actions`` by rule, and ``origin``."""

    records: dict[str, dict[str, Any]]
    decoding: pd.DataFrame
    rounds: pd.DataFrame
    prices: dict[str, Prices]
    actions: dict[str, list[str]]
    origin: dict[str, Any]


def read_selection(folder: Path, records: Path) -> SelectionResults | None:
    """The measurement in ``folder``; ``None`` if there is none."""
    if not (folder / PROVENANCE).is_file():
        return None
    found = {path.stem: json.loads(path.read_text()) for path in records.glob("*.json")}
    priced = json.loads((folder / PRICES).read_text())
    ordered = sorted(priced, key=lambda rule: RULES.index(rule) if rule in RULES else len(RULES))
    tables = {name: pd.read_parquet(folder / name) for name in (DECODING, ROUNDS)}
    return SelectionResults(
        {rule: found[rule] for rule in ordered},
        tables[DECODING],
        tables[ROUNDS],
        {rule: parse_config(Prices, priced[rule]["prices"], f"{folder / PRICES}: {rule}") for rule in ordered},
        {rule: priced[rule]["actions"] for rule in ordered},
        json.loads((folder / PROVENANCE).read_text()),
    )
