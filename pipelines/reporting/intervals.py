"""Intervals as people read them. A dash stands for what is undefined."""

from collections.abc import Sequence

from pipelines.reporting.statistics import Interval

UNKNOWN = "–"


def times(ratio: Interval | None) -> str:
    """A ratio such as ``1.62x (1.55–1.70)``."""
    return _shown(ratio, "{0:.2f}x ({1:.2f}–{2:.2f})")


def bracket(number: Interval | None) -> str:
    """A number such as ``1.62 (1.55–1.70)``."""
    return _shown(number, "{0:.2f} ({1:.2f}–{2:.2f})")


def whole(number: Interval | None) -> str:
    """A number such as ``1620 (1550–1700)``."""
    return _shown(number, "{0:.0f} ({1:.0f}–{2:.0f})")


def percent(gain: Interval | None) -> str:
    """A gain such as ``−2 % (−5…+1)``."""
    return _shown(gain, "{0:+.0f} % ({1:+.0f}…{2:+.0f})", 100)


def share(part: Interval | None) -> str:
    """A share such as ``12 % (8–15)``."""
    return _shown(part, "{0:.0f} % ({1:.0f}–{2:.0f})", 100)


def tenths(part: Interval | None) -> str:
    """A small share without its interval, such as ``1.2 %``."""
    return UNKNOWN if part is None or part["value"] is None else f"{100 * part['value']:.1f} %"


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed([])
    ('a, b and c', 'none')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none"


def known(interval: Interval | None) -> bool:
    """Whether it has a value and both ends."""
    return interval is not None and None not in interval.values()


def surely_above(interval: Interval | None, bar: float = 0.0) -> bool:
    """Whether the whole interval lies above ``bar``."""
    return interval is not None and interval["low"] is not None and interval["low"] > bar


def _shown(interval: Interval | None, form: str, scale: float = 1) -> str:
    if interval is None:
        return UNKNOWN
    ends = [interval[name] for name in ("value", "low", "high")]
    numbers = [scale * end for end in ends if end is not None]
    return form.format(*numbers).replace("-", "−") if len(numbers) == len(ends) else UNKNOWN
