"""The report's HTML page: one file with its images inside, readable offline."""

import base64
import io
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from pipelines.measuring.provenance import numerics
from pipelines.reporting import branch_sentences, heads_report, intervals
from pipelines.reporting.bars import bar_text, measured_text
from pipelines.reporting.branch_folder import Timelines, shown_name
from pipelines.reporting.headline import arm_name, verdicts
from pipelines.reporting.timeline_plots import timeline_text

TEMPLATE = "report.html"
FORMATS = ("times", "bracket", "whole", "percent", "share", "tenths", "listed")  # of `pipelines.reporting.intervals`


def render(
    timing: dict[str, Any],
    quality: dict[str, Any],
    facts: dict[str, Any],
    images: dict[str, bytes],
    small: str,
    timelines: Timelines,
    said: dict[str, list[str]],
) -> str:
    """The page's HTML. ``facts`` is ``pair.json``, ``small`` the size of the built-in pair's trained target in words, ``said``
    what sections come to."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True, undefined=StrictUndefined
    )
    environment.globals |= {name: getattr(intervals, name) for name in FORMATS}
    environment.globals |= {
        "name": arm_name,
        "shown_name": shown_name,
        "bar_text": bar_text,
        "measured_text": measured_text,
    }
    environment.globals["image"] = lambda name, text=None: _image(images[name], text or name)
    origin = timing["provenance"]
    heads = quality["heads"]
    return environment.get_template(TEMPLATE).render(
        pair=facts["pair"],
        verdicts={row["setting"]: verdicts(row, timing["bundle"]) for row in timing["settings"]},
        timing=timing,
        quality=quality,
        said=said,
        origin=origin,
        device=origin["device"],
        parameters={name: value for name, value in origin["parameters"].items() if name != "arms"},
        numerics=numerics(origin),
        facts=facts,
        small=small,
        exact={row["arm"]: "yes" if row["exact_float32"] else "no" for row in quality["exactness"]},
        num_exact=sum(row["exact_float32"] for row in quality["exactness"]),
        selection=(timing["bundle"] or {}).get("selection"),
        head_rows=heads_report.rows(heads) if heads else [],
        verifier_tables=_verifier_tables(timing["verifiers"], quality["verifiers"]),
        branches=_branches(timing["branches"], quality["branches"]),
        timelines=timeline_text(timelines),
    )


def png(figure: Figure) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _image(data: bytes, text: str) -> Markup:
    encoded = base64.b64encode(data).decode()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(text, encoded)


def _branches(timing: dict[str, Any] | None, quality: dict[str, Any] | None) -> list[dict[str, Any]]:
    """By sampling setting: what was found in words, speeds and counts."""
    if timing is None or quality is None:
        return []
    groups = zip(timing["settings"], quality["settings"], strict=True)
    return [
        {"sentences": branch_sentences.sentences(speeds), "speeds": speeds, "counts": counts["arms"]}
        for speeds, counts in groups
    ]


def _verifier_tables(timing: dict[str, Any] | None, quality: dict[str, Any] | None) -> list[dict[str, Any]]:
    """One table per sampling setting: a rule's expectation, counts and speed in one row; ``speed`` of rules that were timed."""
    if timing is None or quality is None:
        return []
    speeds = {group["setting"]: group["rules"] for group in timing["settings"]}
    tables = []
    for group in quality["settings"]:
        timed = {row["name"]: row for row in speeds.get(group["setting"], ()) if row["speedup"]["value"] is not None}
        rules = [{**count, "speed": timed.get(count["name"])} for count in group["rules"]]
        tables.append({"setting": group["setting"], "rules": rules, "timed": bool(timed)})
    return tables
