"""Section ``fitted``: what every predictor knows of test positions, and what its rule is worth by replay of them.

gains    of tokens per second at this machine's prices, over the best static length; intervals by bootstrap over documents
"""

from collections.abc import Iterator

from pipelines.measuring.names import HRAD
from pipelines.report.inputs import Inputs, Record
from pipelines.report.section import Interval, Picture, Row, Section, Table, Unit, frame, winners

OWN, ORACLE = "its rule", "oracle"
POLICIES = {  # by column; of records, in which a predictor's own rule has several names
    OWN: ("head", "model", "selector"),
    "forced": ("asked",),
    "at no cost": ("asked for nothing",),
    ORACLE: ("oracle", "perfect"),
}
NOTES = (
    "A head says from the states before a draft how many of its next tokens will be accepted; a stop model, whether a drafted "
    "token will; survival, both; source and takeover, when to copy from the text; a selector, which tree to draft.",
    "Where no rule surely gained on validation documents, the best static length is drafted and the predictor is not run. "
    "Forced: it is run all the same; at no cost: and takes no time. The oracle knows what will be accepted. ECE: miscalibration.",
)


def section(inputs: Inputs) -> Section | None:
    """Make the section; ``None`` where no predictor with a rule was fitted."""
    records = {name: one for name, one in inputs.fitted.items() if "parts" in one}
    rows = [row for name, record in records.items() for row in _rows(name, record)]
    if not rows:
        return None
    gains: dict[str, Interval | None] = {f"{row['predictor']} at {row['sampling']}": row.get(OWN) for row in rows}
    finding = f"Surely over the best static length in replay: {winners(Unit.GAIN, 0.0, gains)}."
    drawn = [reliability(records[HRAD])] if HRAD in records else []
    table = Table("fitted", frame(rows), "Gains over the best static length, replayed")
    return Section("fitted", "What controllers learned", finding, [table], drawn, NOTES)


def _rows(name: str, record: Record) -> Iterator[Row]:
    """By sampling setting: the quality of a head or of a stop model, then gains."""
    for setting, part in record["parts"].items():
        known = part.get("metrics", {}).get("head") or record.get("tokens", {}).get("all", {})
        policies, kind = part.get("policies", part), part.get("kind")
        gains = {OWN: policies[kind]["gain"]} if kind else {}
        gains |= {name: policies[one]["gain"] for name, some in POLICIES.items() for one in some if one in policies}
        yield {
            "predictor": name,
            "sampling": setting,
            "AUC": known.get("macro_auc", known.get("auroc")),
            "ECE": known.get("ece"),
            "static γ": part.get("static_length"),
            **{name: gain if name in (OWN, ORACLE) else gain["value"] for name, gain in gains.items()},
        }


def reliability(head: Record) -> Picture:
    """Accuracy of a head's record over its confidence, a panel for each sampling setting."""
    panels = []
    for setting, part in head["parts"].items():
        bins = [(one["confidence"], one["accuracy"]) for one in part["metrics"]["head"]["reliability"]]
        rows = [{"confidence": said, "right": right, "perfect": said} for said, right in bins]
        panels.append(Table(setting, frame(rows), unit=Unit.NUMBER))
    return Picture("reliability", "How often the head was right at each stated confidence.", panels)
