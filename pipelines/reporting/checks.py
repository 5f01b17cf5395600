"""Section ``checks``: what the project holds itself to on this machine, of all sections."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.reporting.section import Check, Section, Table
from pipelines.reporting.text import TINY, alone, listed

AGREEMENT = 1e-5
LOGITS = "{}'s logits, compact against Hugging Face's in float32, of 1 + abs(logit)"


def checked(sections: Iterable[Section], agreement: Mapping[str, Any], missing: list[str]) -> Section:
    """Their checks, and how far our forward's logits in float32 are from Hugging Face's (``agreement``, by model)."""
    checks = [check for section in sections for check in section.checks]
    for model, found in agreement.items():
        checks.append(Check(LOGITS.format(model), alone(found["compact"]), AGREEMENT, TINY, at_most=True))
    rows = [check.row() for check in checks]
    notes = ["Met: the measured value. Surely: its whole interval."]
    notes += [f"Nothing was measured of: {listed(missing)}."] if missing else []
    met = sum(bool(row["met"]) for row in rows)
    return Section("checks", "Checks", f"{met} of {len(rows)} checks pass.", [Table(rows)], notes=notes)
