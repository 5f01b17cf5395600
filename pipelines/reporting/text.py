"""Values as people read them; the only place where intervals are written. A dash stands for what is undefined.

TIMES    1.62x (1.55–1.70)         GAIN     −2 % (−5…+1)          SHARE    12 % (8–15)
NUMBER   1.62 (1.55–1.70)          WHOLE    1620 (1550–1700)      MS       1.62 (1.55–1.70), of seconds
TINY     1.6e-05                   TEXT     as it is; truth values as yes and no
"""

from collections.abc import Callable, Sequence
from typing import Any

Interval = dict[str, float | None]  # value, low, high; all None where undefined
UNDEFINED: Interval = {"value": None, "low": None, "high": None}
UNKNOWN = "–"
TEXT, TIMES, GAIN, SHARE, NUMBER = "text", "times", "gain", "share", "number"
WHOLE, MS, TINY = "whole", "milliseconds", "tiny"
FORMS = {  # unit -> scale, value, between the ends
    TIMES: (1, "{:.2f}x", "–"),
    GAIN: (100, "{:+.1f} %", "…"),
    SHARE: (100, "{:.0f} %", "–"),
    NUMBER: (1, "{:.2f}", "–"),
    WHOLE: (1, "{:.0f}", "–"),
    MS: (1000, "{:.2f}", "–"),
    TINY: (1, "{:.1e}", "–"),
}


def shown(value: Any, unit: str = TEXT) -> str:
    """A cell.

    Examples
    --------
    >>> shown({"value": 1.62, "low": 1.55, "high": 1.7}, TIMES), shown(0.123, SHARE), shown(None), shown(True)
    ('1.62x (1.55–1.70)', '12 %', '–', 'yes')
    """
    if isinstance(value, dict):
        return _interval(value, unit)
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == TEXT or isinstance(value, str):
        return str(value)
    scale, form, _ = FORMS[unit]
    return form.format(scale * value).replace("-", "−")


def _interval(interval: Interval, unit: str) -> str:
    text = shown(interval["value"], unit)
    if not known(interval):
        return text
    scale, form, between = FORMS[unit]
    bare = form.split("}")[0] + "}"
    between = "…" if (interval["low"] or 0.0) < 0 else between
    ends = (bare.format(scale * (interval[end] or 0.0)).replace("-", "−") for end in ("low", "high"))
    return f"{text} ({between.join(ends)})"


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed([])
    ('a, b and c', 'none')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none"


def alone(value: float | None) -> Interval:
    """A value without an interval."""
    return {"value": value, "low": None, "high": None}


def changed(interval: Interval, function: Callable[[float], float]) -> Interval:
    """An increasing ``function`` of the value and of both ends."""
    return {end: None if value is None else function(value) for end, value in interval.items()}


def known(interval: Interval | None) -> bool:
    """Whether it has a value and both ends."""
    return interval is not None and None not in interval.values()


def surely_above(interval: Interval | None, bar: float = 0.0) -> bool:
    """Whether the whole interval lies above ``bar``."""
    return interval is not None and interval["low"] is not None and interval["low"] > bar
