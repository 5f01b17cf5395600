"""The report's HTML page: one file with its images inside, readable offline."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from pipelines.measuring.provenance import numerics
from pipelines.reporting.bars import bar_text, measured_text
from pipelines.reporting.branch_folder import Timelines
from pipelines.reporting.branch_page import branch_section
from pipelines.reporting.headline import UNKNOWN, arm_name, headline, percent, times
from pipelines.reporting.release_report import sentences as release_sentences
from pipelines.reporting.replay_report import sentences as replay_sentences
from pipelines.reporting.selection_report import sentences as selection_sentences
from pipelines.reporting.self_drafting_report import sentences as self_drafting_sentences
from pipelines.reporting.stopping_report import sentences as stopping_sentences
from pipelines.reporting.timeline_plots import timeline_text
from pipelines.reporting.verifier_report import sentence

TEMPLATE = "report.html"
TARGET_NAMES = {"classes": "H-RAD", "length": "explicit length"}
PREDICTOR_NAMES = {
    "head_argmax": "H-RAD, argmax rule",
    "majority": "majority class",
    "previous_label": "previous round's label",
    "draft_confidence": "draft confidence",
    "confidence": "confidence rule",
    "best_static": "best static γ",
    "oracle": "oracle (knows the outcome)",
}


def render(
    timing: dict[str, Any],
    quality: dict[str, Any],
    facts: dict[str, Any],
    images: dict[str, bytes],
    small: str,
    timelines: Timelines,
) -> str:
    """The page's HTML. ``facts`` is ``pair.json``, ``small`` the size of the built-in pair's trained target in words."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True, undefined=StrictUndefined
    )
    origin = timing["provenance"]
    selection = (timing["bundle"] or {}).get("selection")
    exported = exported_predictor(timing, quality)
    exact = {row["arm"]: "yes" if row["exact_float32"] else "no" for row in quality["exactness"]}
    return environment.get_template(TEMPLATE).render(
        pair=facts["pair"],
        title=timing["title"],
        verdicts=[
            {"temperature": f"{row['temperature']:g}", "sentences": _without_place(row, timing)}
            for row in timing["temperatures"]
        ],
        timing=timing,
        quality=quality,
        origin=origin,
        device=origin["device"],
        parameters={name: value for name, value in origin["parameters"].items() if name != "arms"},
        numerics=numerics(origin),
        arms=list(timing["temperatures"][0]["arms"]),
        facts=facts,
        small=small,
        exact=exact,
        num_exact=sum(row["exact_float32"] for row in quality["exactness"]),
        selection=selection,
        predictor=quality["predictors"].get(exported),
        verifier_tables=_verifier_tables(timing["verifiers"], quality["verifiers"]),
        verifier_sentence=sentence(quality["verifiers"], timing["verifiers"]) if quality["verifiers"] else None,
        predictor_rows=_predictor_rows(quality["predictors"], exported),
        trees=_section(timing["selection"], quality["selection"], selection_sentences),
        stops=_section(timing["stopping"], quality["stopping"], stopping_sentences),
        replay=_section(timing["replay"], quality["replay"], replay_sentences),
        release=_section(timing["release"], quality["release"], release_sentences),
        alone=_section(timing["self_drafting"], quality["self_drafting"], self_drafting_sentences),
        branches=branch_section(timing["branches"], quality["branches"], exact),
        timelines=timeline_text(timelines),
        image=lambda name, text=None: _image(images[name], text or name),
        name=arm_name,
        bar_text=bar_text,
        measured_text=measured_text,
        times=times,
        percent=percent,
        whole=lambda value: UNKNOWN if value["value"] is None else f"{value['value']:.0f}",
        share=lambda value: UNKNOWN if value["value"] is None else f"{100 * value['value']:.1f} %",
        bracket=_bracket,
    )


def exported_predictor(timing: dict[str, Any], quality: dict[str, Any]) -> str | None:
    """The predictor in the measured bundle; the first one measured where that is unknown, ``None`` without any."""
    selection = (timing["bundle"] or {}).get("selection") or {}
    measured = quality["predictors"]
    return selection["predictor"] if selection.get("predictor") in measured else next(iter(measured), None)


def png(figure: Figure) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _without_place(row: dict[str, Any], timing: dict[str, Any]) -> list[str]:
    """The headline sentences of one temperature, which the page names once above them."""
    prefix = f"T={row['temperature']:g}: "
    sentences = [s.removeprefix(prefix) for s in headline(timing) if s.startswith(prefix)]
    return [sentence[0].upper() + sentence[1:] for sentence in sentences]


def _bracket(value: dict[str, float | None]) -> str:
    """A number with its interval; a dash where it is undefined."""
    if None in value.values():
        return UNKNOWN
    return f"{value['value']:.2f} ({value['low']:.2f}–{value['high']:.2f})"


def _image(data: bytes, text: str) -> Markup:
    encoded = base64.b64encode(data).decode()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(text, encoded)


def _section(
    timing: dict[str, Any] | None,
    quality: dict[str, Any] | None,
    sentences: Callable[[dict[str, Any], dict[str, Any]], list[str]],
) -> dict[str, Any] | None:
    """A section's records and what they say in words; ``None`` where nothing was measured."""
    if timing is None or quality is None:
        return None
    return {"timing": timing, "quality": quality, "sentences": sentences(quality, timing)}


def _verifier_tables(timing: dict[str, Any] | None, quality: dict[str, Any] | None) -> list[dict[str, Any]]:
    """One table per sampling setting: a rule's expectation, counts and speed side by side; ``speed`` of rules that were timed."""
    if timing is None or quality is None:
        return []
    speeds = {group["setting"]: group["rules"] for group in timing["settings"]}
    tables = []
    for group in quality["settings"]:
        timed = {row["name"]: row for row in speeds.get(group["setting"], ()) if row["speedup"]["value"] is not None}
        rules = [{**count, "speed": timed.get(count["name"])} for count in group["rules"]]
        tables.append({"setting": group["setting"], "rules": rules, "timed": bool(timed)})
    return tables


def _predictor_rows(predictors: dict[str, Any], exported: str | None) -> list[dict[str, Any]]:
    """One row per trained head, then the baselines and policies, which all predictors share."""
    rows = [
        _row(f"{TARGET_NAMES[record['target']]}, {record['feature_set']} features", record, "head")
        | {"exported": name == exported}
        for name, record in predictors.items()
    ]
    if exported is not None:
        shared = predictors[exported]
        rows += [_row(label, shared, name) for name, label in PREDICTOR_NAMES.items() if name in shared["decision"]]
    return rows


def _row(label: str, record: dict[str, Any], name: str) -> dict[str, Any]:
    metrics = record["metrics"].get(name, {})
    figures = {
        key: f"{metrics[key]:.3f}" if metrics.get(key) is not None else "–" for key in ("accuracy", "macro_f1", "ece")
    }
    auc = metrics.get("macro_auc_interval")
    known = auc is not None and None not in auc.values()
    values = {"value": record["decision"][name], "gain": record["gain_over_best_static"][name]}
    return {"name": label, "auc": auc if known else None, "exported": False, **figures, **values}
