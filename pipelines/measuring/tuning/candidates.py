"""What a pair could be decoded with, and how fast each is predicted to be on this machine.

    chains   every policy that was replayed (`pipelines.measuring.replay`): tokens per second on validation texts
    trees    every exported delayed-tree selector: tokens per second on validation roots, over those of the selector of ``block``,
             which has chains alone, times what its best static chain was replayed at
    alone    how the target drafts for itself: the exported way of each method, by the latency profile on validation prompts, as a
             multiple of plain decoding

Only validation is read; test prompts are for scoring what was chosen.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import PLAIN, VALIDATION
from pipelines.measuring.replay.names import POLICIES, REPLAYED
from pipelines.measuring.selection.names import BUNDLE as TREE
from pipelines.measuring.stopping.names import CHAIN

BLOCK = "block"  # the rule of chains


@dataclass(frozen=True)
class Candidate:
    """A decoder by name: ``served`` is its configuration (``decoder``) or the name of its ``bundle``; ``predicted`` in tokens per
    second; ``static``: a fixed draft length."""

    name: str
    served: dict[str, Any]
    predicted: float
    static: bool = False


def candidates(replay: Path, guessers: Path, selectors: Path, setting: str) -> list[Candidate]:
    """All candidates at a sampling setting, the fastest first.

    Raises
    ------
    ValueError
        If nothing was replayed at that setting.
    """
    try:
        table = pd.read_parquet(replay / REPLAYED)
        served = json.loads((replay / POLICIES).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{replay} holds no replay ({error}). Run the replay stage (dvc repro replay) first."
        ) from error
    rows = table[(table["setting"] == setting) & (table["split"] == VALIDATION)]
    if rows.empty:
        known = ", ".join(sorted(table["setting"].unique()))
        raise ValueError(
            f"nothing was replayed at {setting}, only at {known}. Name it in traces.positions.temperatures."
        )
    found = []
    for name, part in rows.groupby("drafter"):
        rate = float(part["tokens"].sum() / part["seconds"].sum())
        if name in served or name == PLAIN:
            how = served.get(name, {"decoder": {"method": PLAIN}})
            found.append(Candidate(str(name), how, rate, bool((part["family"] == CHAIN).all())))
    plain = next(one for one in found if one.name == PLAIN)
    alone = _alone(guessers, setting, plain.predicted)
    trees = _trees(selectors, setting, {one.name: one.predicted for one in found})
    return sorted([*found, *alone, *trees], key=lambda one: one.predicted, reverse=True)


def shortlist(found: list[Candidate], count: int) -> list[Candidate]:
    """The ``count`` fastest of ``found``, and the fastest static chain and plain decoding if they are not among them."""
    chosen = found[:count]
    static = next((one for one in found if one.static), None)
    plain = next(one for one in found if one.name == PLAIN)
    return chosen + [one for one in (static, plain) if one is not None and one not in chosen]


def _trees(folder: Path, setting: str, replayed: Mapping[str, float]) -> Iterator[Candidate]:
    """Delayed-tree selectors, from the records of what was exported; none without a chain to compare them with."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    chains = records.get(BLOCK, {"static_actions": {}})
    chain = replayed.get(chains["static_actions"].get(setting, ""))
    if chain is not None:
        for rule, record in records.items():
            share = record["validation_tokens_per_second"] / chains["validation_tokens_per_second"]
            yield Candidate(f"{TREE}{rule}", {"bundle": f"{TREE}{rule}"}, chain * share)


def _alone(folder: Path, setting: str, plain: float) -> Iterator[Candidate]:
    """Methods without a draft model, from the records of what was exported."""
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        for row in record["rows"]:
            if row["way"] == record["chosen"] and row["setting"] == setting:
                yield Candidate(record["method"], {"bundle": record["method"]}, plain * row["speedup"]["value"])
