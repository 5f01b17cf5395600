"""What the comparison of branch-parallel arms comes to, in sentences read off the intervals of ``timing.json``."""

from typing import Any

from pipelines.measuring.names import PEARL, SPECBRANCH, WITHOUT_HRAD, branch_arm
from pipelines.reporting.branch_folder import VIRTUAL_CLOCK, WALL_CLOCK, shown_name
from pipelines.reporting.intervals import known, percent, surely_above, times
from pipelines.reporting.statistics import Interval

LEADS = (SPECBRANCH, WITHOUT_HRAD)  # the first one measured is spoken of
ON_CLOCK = {VIRTUAL_CLOCK: "On the virtual clock", WALL_CLOCK: "On the wall clock"}


def sentences(speeds: dict[str, Any]) -> list[str]:
    """The outcome at one sampling setting, whose part of ``timing.json`` are ``speeds``."""
    text: list[str] = []
    for clock, where in ON_CLOCK.items():
        arms = [arm for arm, speed in speeds["arms"].items() if branch_arm(arm) and speed["clock"] == clock]
        lead, pearl = _first(arms, LEADS), _first(arms, (PEARL,))
        if lead is not None:
            text.append(_speed_sentence(where, lead, pearl, speeds))
        if clock == WALL_CLOCK:
            text.append(_wall_sentence(arms, speeds))
    return text


def _speed_sentence(where: str, lead: str, pearl: str | None, speeds: dict[str, Any]) -> str:
    speed = speeds["arms"][lead]
    found = [f"{_compared(speed['speedup'], 1.0)} plain decoding, {times(speed['speedup'])}"]
    gains = {f"the best static draft ({shown_name(speeds['static'])})": speed["gain"]}
    if pearl is not None:
        gains[shown_name(pearl)] = speed["gain_over_pearl"]
    found += [f"{_compared(gain, 0.0)} {name}, {percent(gain)}" for name, gain in gains.items() if known(gain)]
    return f"{where} {shown_name(lead)} is {'; '.join(found)}."


def _wall_sentence(arms: list[str], speeds: dict[str, Any]) -> str:
    """What really running both at once gains, whichever way it went."""
    static = f"the best static draft ({shown_name(speeds['static'])})"
    concurrent = [arm for arm in arms if (parts := branch_arm(arm)) is not None and parts.wall]
    if not concurrent:
        return "No arm ran both models at once here: what the virtual clock promises was not put to the test."
    gaining = [shown_name(arm) for arm in concurrent if surely_above(speeds["arms"][arm]["gain"])]
    if not gaining:
        return f"Really run concurrently on this machine, no arm is surely faster than {static}."
    return f"Really run concurrently on this machine, surely faster than {static}: {', '.join(gaining)}."


def _compared(interval: Interval, bar: float) -> str:
    """Where a whole interval lies."""
    low, high = interval["low"], interval["high"]
    assert low is not None and high is not None
    return "faster than" if low > bar else "slower than" if high < bar else "not told apart from"


def _first(arms: list[str], presets: tuple[str, ...]) -> str | None:
    by_preset = {parts.preset: arm for arm in arms if (parts := branch_arm(arm)) is not None}
    return next((by_preset[preset] for preset in presets if preset in by_preset), None)
