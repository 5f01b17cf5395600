"""What the project holds itself to: a measured value against a bar, as a row of the report's table of checks."""

from typing import Any

from pipelines.reporting.intervals import percent, times
from pipelines.reporting.statistics import Interval

# Median relative error from which on a prediction is none. On one machine it is a few hundredths, and half of it lies beyond what
# another load or number format explains.
MOST_APART = 0.5
RATIO, SHARE, NUMBER, TINY = "x", "%", "", "1e"


def apart(median_error: float) -> str | None:
    """What to say instead of a figure where a latency profile and the clock do not belong together; ``None`` where they do."""
    if median_error <= MOST_APART:
        return None
    return (
        f"latency profile and clock do not belong together (more than {MOST_APART:.0%} apart in the median): one of them was "
        "measured on another machine or while other jobs ran. Run dvc repro -sf latency@PAIR, then dvc repro"
    )


def bar_row(name: str, measured: Interval, bar: float, unit: str = RATIO, at_most: bool = False) -> dict[str, Any]:
    """A bar and whether the measured value and its whole interval meet it (``None``: there is no interval)."""
    sign = -1 if at_most else 1
    met = {key: None if value is None else bool(sign * value >= sign * bar) for key, value in measured.items()}
    return {
        "name": name,
        "bar": bar,
        "unit": unit,
        "at_most": at_most,
        "measured": measured,
        "met": bool(met["value"]),
        "interval_met": None if None in met.values() else all(met.values()),
    }


def bar_text(row: dict[str, Any]) -> str:
    """A bar as a person reads it: ``at least 1.1x``."""
    bar = row["bar"]
    text = {RATIO: f"{bar:.1f}x", SHARE: f"{100 * bar:.0f} %", NUMBER: f"{bar:g}", TINY: f"{bar:.0e}"}[row["unit"]]
    return f"at {'most' if row['at_most'] else 'least'} {text}"


def measured_text(row: dict[str, Any]) -> str:
    """The measured value as a person reads it, with its interval if it has one."""
    measured, unit = row["measured"], row["unit"]
    if None in measured.values():
        value = measured["value"]
        return {RATIO: f"{value:.2f}x", SHARE: f"{100 * value:.1f} %", NUMBER: f"{value:.2f}", TINY: f"{value:.1e}"}[
            unit
        ]
    return percent(measured) if unit == SHARE else times(measured)
