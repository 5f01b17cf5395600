"""Values and arms as people read them; the only place where intervals are written. A dash stands for what is undefined.

TIMES    1.62x (1.55–1.70)         GAIN     −2.0 % (−5.0…+1.0)     SHARE    12 % (8–15)
NUMBER   1.62 (1.55–1.70)          FINE     0.625 (0.616–0.640)    WHOLE    1620 (1550–1700)
MS       1.62 (1.55–1.70), of seconds, three digits                TINY     1.6e-05
TEXT     as it is; truth values as yes and no                      COARSE   −2 % (−15…+11), a gain known to ten points or less
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.measuring import names

Interval = dict[str, float | None]  # value, low, high; all None where undefined
UNDEFINED: Interval = {"value": None, "low": None, "high": None}
UNKNOWN = "–"
TEXT, TIMES, GAIN, SHARE, NUMBER = "text", "times", "gain", "share", "number"
FINE, WHOLE, MS, TINY, COARSE = "fine", "whole", "milliseconds", "tiny", "coarse"
SCALES = {GAIN: 100, COARSE: 100, SHARE: 100, MS: 1000}  # of other units 1
WIDE = 0.1  # an interval of a gain without decimals
FORMS: dict[str, tuple[Callable[[float], str], str, str]] = {  # a number, what follows it, what is between the ends
    TIMES: ("{:.2f}".format, "x", "–"),
    GAIN: ("{:+.1f}".format, " %", "…"),
    COARSE: ("{:+.0f}".format, " %", "…"),
    SHARE: ("{:.0f}".format, " %", "–"),
    NUMBER: ("{:.2f}".format, "", "–"),
    FINE: ("{:.3f}".format, "", "–"),
    WHOLE: ("{:.0f}".format, "", "–"),
    MS: (lambda value: f"{value:#.3g}" if abs(value) < 99.5 else f"{value:.0f}", "", "–"),
    TINY: ("{:.1e}".format, "", "–"),
}
NAMES = {
    names.CHAIN: "best static chain",
    names.PLAIN: "plain decoding",
    names.HF_FORWARD: "plain, HF's forward",
    names.HF_PLAIN: "HF generate",
    names.HF_ASSISTED: "HF assisted",
    names.HF_LOOKUP: "HF prompt lookup",
    names.ENTROPY: "entropy (AdaEDL)",
    names.HRAD: "H-RAD",
    names.LENGTH: "explicit length",
}
THRESHOLDS = {names.CONFIDENCE: "ε", names.ENTROPY: "λ"}  # by family, whose arms end with them
PRESETS = {
    names.PEARL: "PEARL",
    names.SPECBRANCH: "SpecBranch",
    names.PAPER: "SpecBranch, paper's rule",
    names.PRIOR: "SpecBranch, paper's rule a priori",
    names.EXPLICIT: "SpecBranch, explicit length",
    names.WITHOUT_HRAD: "SpecBranch without H-RAD",
    names.WITHOUT_BRANCHES: "SpecBranch without branches",
}


def shown(value: Any, unit: str = TEXT) -> str:
    """A cell.

    Examples
    --------
    >>> shown({"value": 1.62, "low": 1.55, "high": 1.7}, TIMES), shown(0.123, SHARE), shown(None), shown(True)
    ('1.62x (1.55–1.70)', '12 %', '–', 'yes')
    """
    if isinstance(value, dict):
        if unit == GAIN and known(value) and value["high"] - value["low"] > WIDE:
            unit = COARSE
        text = shown(value["value"], unit)
        if not known(value):
            return text
        low, high = (_number(value[end] or 0.0, unit) for end in ("low", "high"))
        between = "…" if low.startswith("−") else FORMS[unit][2]
        return f"{text} ({low}{between}{high})"
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == TEXT or isinstance(value, str):
        return str(value)
    return _number(value, unit) + FORMS[unit][1]


def _number(value: float, unit: str) -> str:
    return FORMS[unit][0](SCALES.get(unit, 1) * value).replace("-", "−")


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed([])
    ('a, b and c', 'none')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]])) or "none"


def highest(values: Mapping[str, Interval | None], unit: str = GAIN) -> str:
    """Name and value of the highest estimate.

    Examples
    --------
    >>> highest({"a": alone(0.1), "b": alone(0.2), "c": None}), highest({})
    ('b, +20.0 %', 'none')
    """
    estimates = {name: made["value"] for name, made in values.items() if made and made["value"] is not None}
    best = max(estimates, key=estimates.__getitem__, default=None)
    return "none" if best is None else f"{best}, {shown(values[best], unit)}"


def alone(value: float | None) -> Interval:
    """A value without an interval."""
    return {"value": value, "low": None, "high": None}


def changed(interval: Interval, function: Callable[[float], float]) -> Interval:
    """An increasing ``function`` of the value and of both ends."""
    return {end: None if value is None else function(value) for end, value in interval.items()}


def known(interval: Interval | None) -> bool:
    """Tell whether it has a value and both ends."""
    return interval is not None and None not in interval.values()


def surely_above(interval: Interval | None, bar: float = 0.0) -> bool:
    """Tell whether the whole interval lies above ``bar``."""
    return interval is not None and interval["low"] is not None and interval["low"] > bar


def arm_name(arm: str) -> str:
    """An arm as a person reads it."""
    gamma = names.chain_gamma(arm)
    if gamma is not None:
        return f"chain, γ={gamma}"
    branching = names.branch_arm(arm)
    if branching is not None:
        lengths = "/".join(map(str, branching.lengths))
        return f"{PRESETS[branching.preset]} γ={lengths}"
    family, _, number = arm.partition("-")
    if number and family in THRESHOLDS:
        return f"{NAMES.get(family, family)} {THRESHOLDS[family]}={number}"
    return NAMES.get(arm, arm)
