"""The section on drafting while the target verifies as its template shows it: sentences, and tables of finished cells."""

from collections.abc import Callable
from typing import Any

from pipelines.measuring.names import PLAIN, branch_arm
from pipelines.reporting.branch_folder import shown_name
from pipelines.reporting.branch_sentences import sentences
from pipelines.reporting.headline import percent, times
from pipelines.reporting.statistics import Interval

NOTHING = "–"


def branch_section(
    timing: dict[str, Any] | None, quality: dict[str, Any] | None, exact: dict[str, str]
) -> dict[str, Any] | None:
    """By temperature the outcome and two tables, of speeds and of counts; ``exact`` says by arm whether its greedy text is."""
    if timing is None or quality is None:
        return None
    groups = []
    for speeds, counts in zip(timing["temperatures"], quality["temperatures"], strict=True):
        clocks = {arm: speed["clock"] for arm, speed in speeds["arms"].items()}
        groups.append(
            {
                "temperature": f"{speeds['temperature']:g}",
                "sentences": sentences(speeds, counts),
                "speeds": [_speed_row(arm, speed, speeds["static"]) for arm, speed in speeds["arms"].items()],
                "counts": [_count_row(arm, count, clocks[arm], exact) for arm, count in counts["arms"].items()],
                "texts": any(count["equals_plain"] for count in counts["arms"].values()),
            }
        )
    return {"groups": groups}


def _speed_row(arm: str, speed: dict[str, Any], static: str) -> dict[str, Any]:
    rate = speed["tokens_per_second"]
    against_static = NOTHING if arm == static else _cell(speed["gain_over_best_static"], percent)
    return {
        "name": shown_name(arm),
        "beside": branch_arm(arm) is not None,
        "clock": speed["clock"],
        "tokens_per_second": f"{rate['value']:.0f} ({rate['low']:.0f}–{rate['high']:.0f})",
        "speedup": NOTHING if arm == PLAIN else times(speed["speedup"]),
        "against_static": against_static,
        "against_pearl": _cell(speed["gain_over_pearl"], percent),
        "target_idle": _cell(speed["target_idle"], _share),
        "of_prediction": _cell(speed["of_prediction"], _share),
        "beside_plain": _cell(speed["of_prediction_beside_plain"], _share),
    }


def _count_row(arm: str, count: dict[str, Any], clock: str, exact: dict[str, str]) -> dict[str, Any]:
    texts = count["equals_plain"]
    return {
        "name": shown_name(arm),
        "beside": branch_arm(arm) is not None,
        "clock": clock,
        "block_efficiency": _cell(count["block_efficiency"], _number),
        "m_incl": _cell(count["m_incl"], _number),
        "rollback_rate": _cell(count["rollback_rate"], _share),
        "hits": _cell(count["hits_per_branch_point"], _share),
        "tested": _cell(count["tested"], _share),
        "trimmed": _cell(count["trimmed_share"], _share),
        "waste": _cell(count["waste"], _share),
        "rows_wasted": _cell(count["rows_wasted"], _share),
        "same_text": NOTHING if texts is None else f"{texts['equal']}/{texts['texts']}",
        "exact": exact.get(arm, NOTHING),
    }


def _cell(interval: Interval | None, shown: Callable[[Interval], str]) -> str:
    known = interval is not None and None not in interval.values()
    return shown(interval) if interval is not None and known else NOTHING


def _share(interval: Interval) -> str:
    value, low, high = (100 * (interval[name] or 0.0) for name in ("value", "low", "high"))
    return f"{value:.0f} % ({low:.0f}–{high:.0f})"


def _number(interval: Interval) -> str:
    return f"{interval['value']:.2f} ({interval['low']:.2f}–{interval['high']:.2f})"
