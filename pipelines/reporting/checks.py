"""Section ``checks``: what the project holds itself to on this machine, of all sections."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.reporting.section import Check, Column, Section, Table
from pipelines.reporting.text import TINY, listed

AGREEMENT = 1e-5
COLUMNS = (Column("check"), Column("bar"), Column("measured"), Column("met"), Column("surely"))


def checked(sections: Iterable[Section], agreement: Mapping[str, Any], missing: list[str]) -> Section:
    """Their checks, and how far our forward's logits in float32 are from Hugging Face's (``agreement``, by model)."""
    checks = [check for section in sections for check in section.checks]
    for model, found in agreement.items():
        apart = {"value": found["compact"], "low": None, "high": None}
        checks.append(
            Check(
                f"{model}'s logits, compact against Hugging Face's in float32, of 1 + abs(logit)",
                apart,
                AGREEMENT,
                TINY,
                at_most=True,
            )
        )
    rows = tuple(check.row() for check in checks)
    met = sum(bool(row[3]) for row in rows)
    left_out = (f"Nothing was measured of: {listed(missing)}.",) if missing else ()
    note = "Met: the measured value. Surely: its whole interval."
    return Section(
        "checks", "Checks", f"{met} of {len(rows)} checks pass.", (Table(COLUMNS, rows),), notes=(note, *left_out)
    )
