"""What the fits of both stages say: every metric with intervals, what is lost against the whole, and what is enough."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from pipelines.studies.enough.recommendation import Seeds, cheapest, enough, loss, surely_worse

FAMILIES = {
    "heads": "rounds",
    "stop_models": "tokens",
    "rules": "roots",
}  # studied controllers -> the traces they learn from
SELECTOR = "delayed_tree-{}"


def learning_curves(fits: pd.DataFrame, seed: int) -> dict[str, Any]:
    """By controller: its metrics at every share of the training documents, and the place of the least that is ``enough``."""
    curves = {}
    for controller, rows in _parts(fits, "controller"):
        points = _compared(rows, seed)
        for point, (_, learnt) in zip(points, _parts(rows, "variant"), strict=True):
            point |= {"share": float(point.pop("variant")), "documents": learnt["documents"].iloc[0].item()}
            point["rows"] = round(learnt["rows"].mean())
        losses = [point["losses"] for point in points]
        by_metric = {name: enough([{name: lost[name]} for lost in losses]) for name in losses[0]}
        curves[controller] = {"points": points, "enough": enough(losses), "enough_by_metric": by_metric}
    return curves


def layers(fits: pd.DataFrame, seed: int) -> dict[str, Any]:
    """By controller: its metrics with every set of features, and which is the ``cheapest`` that is not surely worse than all."""
    found = {}
    for controller, rows in _parts(fits, "controller"):
        points = _compared(rows, seed)
        for point, (_, read) in zip(points, _parts(rows, "variant"), strict=True):
            point["bytes"] = read["bytes"].iloc[0].item()
        found[controller] = {"points": points, "cheapest": cheapest(points)}
    return found


def present_shares(
    main: Mapping[str, Any], study: Mapping[str, Any], chosen: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """By controller: training prompts that the main pipeline collects, as a share of the study's. ``main``, ``study``: sections
    ``traces`` of either; ``chosen``: the study's controllers by family."""
    shares = {
        "rounds": study["rounds"]["every"] / main["rounds"]["every"],
        "tokens": study["tokens"]["every"] / main["tokens"]["every"],
        "roots": main["roots"]["prompts"][0] / study["roots"]["prompts"][0],
    }
    return {
        SELECTOR.format(name) if family == "rules" else name: shares[traces]
        for family, traces in FAMILIES.items()
        for name in chosen[family]
    }


def _parts(rows: pd.DataFrame, column: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Rows by the column's values, in order of appearance."""
    return ((str(name), part) for name, part in rows.groupby(column, sort=False))


def _compared(rows: pd.DataFrame, seed: int) -> list[dict[str, Any]]:
    """Every variant of one controller in order, the last of which is the whole."""
    variants = {
        variant: {metric: Seeds.of(part) for metric, part in _parts(made, "metric")}
        for variant, made in _parts(rows, "variant")
    }
    whole = variants[list(variants)[-1]]
    points = []
    for variant, metrics in variants.items():
        losses = {metric: loss(made, whole[metric], metric, seed) for metric, made in metrics.items()}
        summaries = {metric: made.summary() for metric, made in metrics.items()}
        points.append(
            {"variant": variant, "metrics": summaries, "losses": losses, "surely_worse": surely_worse(losses)}
        )
    return points
