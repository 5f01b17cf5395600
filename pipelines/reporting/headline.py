"""The report's first sentences: the verdict, computed from ``timing.json`` and nothing else."""

from typing import Any

from pipelines.measuring.names import CHAIN, CONFIDENCE, ENTROPY, HF_LOOKUP, HRAD, LENGTH, chain_gamma
from pipelines.reporting.statistics import Interval

UNKNOWN = "–"
NAMES = {
    "autoregressive": "plain decoding",
    "plain_hf_forward": "plain, HF's forward",
    "hf_generate": "HF generate",
    "hf_assisted": "HF assisted",
    HF_LOOKUP: "HF prompt lookup",
    ENTROPY: "entropy (AdaEDL)",
    HRAD: "H-RAD",
    LENGTH: "explicit length",
}


def arm_name(arm: str) -> str:
    """An arm as a person reads it."""
    gamma = chain_gamma(arm)
    if gamma is not None:
        return f"static γ={gamma}"
    family, _, number = arm.partition("-")
    return f"confidence ε={number}" if family == CONFIDENCE else NAMES.get(arm, arm)


def headline(timing: dict[str, Any]) -> list[str]:
    """One sentence on the best static setting per temperature, one on each controller against it."""
    sentences = []
    for row in timing["temperatures"]:
        where = f"T={row['temperature']:g}"
        static = row["chosen"][CHAIN]
        speedup = row["arms"][static]["speedup"]
        sentences.append(
            f"{where}: {arm_name(static)} (chosen on validation prompts) decodes {times(speedup)} as fast as plain "
            f"decoding{'' if speedup['low'] > 1 else '; speculation does not pay here'}."
        )
        sentences += [
            _controller(name, arm, row, timing["bundle"])
            for name, arm in ((HRAD, HRAD), ("Confidence", row["chosen"].get(CONFIDENCE)), ("Entropy", ENTROPY))
            if arm in row["arms"] and row["arms"][arm]["gain_over_best_static"]["value"] is not None
        ]
    return sentences


def title(timing: dict[str, Any]) -> str:
    """The verdict in a breath, for the top of the page."""
    parts: list[str] = []
    for row in timing["temperatures"]:
        static = row["chosen"][CHAIN]
        as_fast = "" if parts else " as fast as plain decoding"
        gamma = chain_gamma(static)
        parts.append(
            f"{times(row['arms'][static]['speedup'])}{as_fast} at temperature {row['temperature']:g} (γ={gamma})"
        )
    text = f"On this machine the best static setting is {' and '.join(parts)}."
    gains = [
        (row["temperature"], row["arms"][HRAD]["gain_over_best_static"], row["arms"][HRAD]["speedup"])
        for row in timing["temperatures"]
        if HRAD in row["arms"]
        and row["arms"][HRAD]["gain_over_best_static"]["value"] is not None
        and calibrated(timing["bundle"], row["temperature"])
    ]
    if not gains:
        return text
    pays = all((gain["low"] or 0.0) > 0 and (speedup["low"] or 0.0) > 1 for _, gain, speedup in gains)
    shown = " and ".join(f"{percent(gain)} at temperature {temperature:g}" for temperature, gain, _ in gains)
    elsewhere = "; elsewhere it falls back to a static setting" if len(gains) < len(timing["temperatures"]) else ""
    return f"{text} H-RAD gains {shown} over it: it {'pays' if pays else 'does not pay'} there{elsewhere}."


def verdict(gain: Interval, speedup: Interval) -> str:
    """What a gain over the best static setting means, read off its interval; nothing pays that plain decoding beats."""
    low, high = gain["low"], gain["high"]
    assert low is not None and high is not None
    if (speedup["low"] or 0.0) <= 1:
        return "it does not pay here: it is not surely faster than plain decoding"
    if low > 0:
        return "it pays here"
    if high < 0:
        return "it does not pay here: the best static setting is faster"
    return "it does not pay here: the interval includes 0"


def times(ratio: Interval) -> str:
    """A ratio such as ``1.62x (1.55–1.70)``; a dash where it is undefined."""
    if None in ratio.values():
        return UNKNOWN
    return f"{ratio['value']:.2f}x ({ratio['low']:.2f}–{ratio['high']:.2f})"


def percent(gain: Interval) -> str:
    """A gain such as ``−2 % (−5…+1)``; a dash where it is undefined."""
    if None in gain.values():
        return UNKNOWN
    value, low, high = (f"{100 * (gain[name] or 0.0):+.0f}".replace("-", "−") for name in ("value", "low", "high"))
    return f"{value} % ({low}…{high})"


def calibrated(bundle: dict[str, Any] | None, temperature: float) -> bool:
    """Whether the exported controller is calibrated for a temperature."""
    return bundle is not None and any(abs(row[0] - temperature) < 1e-6 for row in bundle["calibrated_settings"])


def _controller(name: str, arm: str, row: dict[str, Any], bundle: dict[str, Any] | None) -> str:
    where, gain = f"T={row['temperature']:g}", row["arms"][arm]["gain_over_best_static"]
    speedup = row["arms"][arm]["speedup"]
    if arm == HRAD and not calibrated(bundle, row["temperature"]):
        assert bundle is not None
        fallback = bundle["thresholds"]["static_gamma"]
        return (
            f"{where}: H-RAD is not calibrated here and falls back to static γ={fallback}: {percent(gain)} "
            "against the best static setting."
        )
    return f"{where}: {'H-RAD' if arm == HRAD else name} gains {percent(gain)} over it: {verdict(gain, speedup)}."
