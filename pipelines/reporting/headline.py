"""The report's first sentences: the verdict, computed from ``timing.json`` and nothing else."""

from typing import Any

from pipelines.measuring.names import CHAIN, CONFIDENCE, ENTROPY, HF_LOOKUP, HRAD, LENGTH, chain_gamma
from pipelines.reporting.intervals import known, percent, surely_above, times
from pipelines.reporting.statistics import Interval
from predictors.sampling import SamplingSettings

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
    """One sentence on the best static setting per sampling setting, one on each controller against it."""
    return [
        f"{row['setting']}: {sentence}" for row in timing["settings"] for sentence in verdicts(row, timing["bundle"])
    ]


def verdicts(row: dict[str, Any], bundle: dict[str, Any] | None) -> list[str]:
    """The sentences of one sampling setting."""
    arms, static = row["arms"], row["chosen"][CHAIN]
    speedup = arms[static]["speedup"]
    said = [
        f"{arm_name(static)} (chosen on validation prompts) decodes {times(speedup)} as fast as plain decoding"
        f"{'' if surely_above(speedup, 1.0) else '; speculation does not pay here'}."
    ]
    controllers = ((HRAD, HRAD), ("Confidence", row["chosen"].get(CONFIDENCE)), ("Entropy", ENTROPY))
    for name, arm in controllers:
        if arm not in arms or not known(arms[arm]["gain"]):
            continue
        gain = arms[arm]["gain"]
        if arm == HRAD and not calibrated(bundle, row["setting"]):
            said.append(
                "H-RAD is not calibrated here and falls back to a static draft: "
                f"{percent(gain)} against the best static setting."
            )
        else:
            shown = arm_name(name) if name == HRAD else name
            said.append(f"{shown} gains {percent(gain)} over it: {verdict(gain, arms[arm]['speedup'])}.")
    return said


def title(timing: dict[str, Any]) -> str:
    """The verdict in a breath, for the top of the page."""
    parts: list[str] = []
    gains: list[str] = []
    pays = True
    for row in timing["settings"]:
        static, where = row["chosen"][CHAIN], row["setting"]
        as_fast = "" if parts else " as fast as plain decoding"
        parts.append(f"{times(row['arms'][static]['speedup'])}{as_fast} at {where} (γ={chain_gamma(static)})")
        made = row["arms"].get(HRAD)
        if made is not None and known(made["gain"]) and calibrated(timing["bundle"], where):
            gains.append(f"{percent(made['gain'])} at {where}")
            pays = pays and surely_above(made["gain"]) and surely_above(made["speedup"], 1.0)
    text = f"On this machine the best static setting is {' and '.join(parts)}."
    if not gains:
        return text
    elsewhere = "; elsewhere it falls back to a static setting" if len(gains) < len(parts) else ""
    return (
        f"{text} H-RAD gains {' and '.join(gains)} over it: it {'pays' if pays else 'does not pay'} there{elsewhere}."
    )


def verdict(gain: Interval, speedup: Interval) -> str:
    """What a gain over the best static setting means, read off its interval; nothing pays that plain decoding beats."""
    if not surely_above(speedup, 1.0):
        return "it does not pay here: it is not surely faster than plain decoding"
    if surely_above(gain):
        return "it pays here"
    below = gain["high"] is not None and gain["high"] < 0
    return f"it does not pay here: the {'best static setting is faster' if below else 'interval includes 0'}"


def calibrated(bundle: dict[str, Any] | None, setting: str) -> bool:
    """Whether the exported controller is calibrated for a sampling setting."""
    settings = [] if bundle is None else bundle["calibrated_settings"]
    return any(SamplingSettings(heat, int(top_k), top_p).name == setting for heat, top_k, top_p in settings)
