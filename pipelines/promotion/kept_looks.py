"""Looks that were taken at a version: the gate's records on it (`Champions.verdicts`), and what they leave to the next one.

A look counts once it was measured. Of many measurements of one look, or judged by many bounds, one would pass by chance.
"""

import json
from dataclasses import asdict
from typing import Any

from pipelines.promotion.plan import Bounds
from pipelines.promotion.verdict import EXHAUSTED, REFUSED, outcome_of

Record = dict[str, Any]


def looks_among(records: list[Record]) -> list[Record]:
    """Records for which something was measured; those of version 1 are another gate's."""
    return [record for record in records if record.get("version", 1) >= 2 and record.get("smallest_gain") is not None]


def next_look(earlier: list[Record], name: str, version: str, planned: int) -> int:
    """The number of the next look after the kept verdicts.

    Raises
    ------
    ValueError
        After a refusal, which stands, and after the last ``planned`` look.
    """
    looks = looks_among(earlier)
    if looks and outcome_of(looks[-1]) == REFUSED:
        raise ValueError(
            f"{name} version {version} was refused at look {looks[-1]['look']}, and more looks would not change what is "
            "known. Register another bundle, or promote this one with --force."
        )
    number = max((int(record["look"]) for record in looks), default=0) + 1
    if number > planned:
        raise ValueError(
            f"{EXHAUSTED}: the plan has no further look at {name} version {version}, all {planned} were taken. Register another "
            "bundle, or promote this one with --force."
        )
    return number


def require_new(record: Record, earlier: list[Record]) -> None:
    """`ValueError` for a second measurement of a look that was taken: only the first one counts."""
    for kept in looks_among(earlier):
        if kept["look"] >= record["look"] and kept["evidence_sha256"] != record["evidence_sha256"]:
            raise ValueError(
                f"look {record['look']} was taken already, by other evidence. Of many measurements one passes by chance: "
                "measure the next look (leave --evidence out)."
            )


def require_same_bounds(bounds: Bounds, earlier: list[Record]) -> None:
    """`ValueError` if an earlier look was judged by other bounds."""
    here = json.loads(json.dumps(asdict(bounds)))
    for kept in looks_among(earlier):
        for key, value in kept.get("bounds", here).items():
            if here.get(key) != value:
                raise ValueError(
                    f"promotion.{key} was {value} at look {kept['look']}, and is {here.get(key)} now: bounds are fixed before "
                    "anything is measured. Put it back, register another bundle, or say --force."
                )
