"""What the comparison of branch-parallel arms comes to, in sentences read off the intervals of the report's two records."""

from typing import Any

from pipelines.measuring.names import PEARL, SPECBRANCH, WITHOUT_HRAD, branch_arm
from pipelines.reporting.branch_folder import VIRTUAL_CLOCK, WALL_CLOCK, shown_name
from pipelines.reporting.intervals import known, percent, points, surely_above, times
from pipelines.reporting.statistics import Interval

LEADS = (SPECBRANCH, WITHOUT_HRAD)  # the first one measured is spoken of
ON_CLOCK = {VIRTUAL_CLOCK: "On the virtual clock", WALL_CLOCK: "On the wall clock"}


def sentences(speeds: dict[str, Any], counts: dict[str, Any]) -> list[str]:
    """The outcome at one sampling setting: ``speeds`` and ``counts`` are its parts of ``timing.json`` and ``quality.json``."""
    text: list[str] = []
    of_rounds: list[str] = []
    for clock, where in ON_CLOCK.items():
        arms = [arm for arm, speed in speeds["arms"].items() if branch_arm(arm) and speed["clock"] == clock]
        lead, pearl = _first(arms, LEADS), _first(arms, (PEARL,))
        if lead is not None:
            text.append(_speed_sentence(where, lead, pearl, speeds))
            of_rounds = of_rounds or [*_rollback_sentence(lead, pearl, counts), *_bypassed_sentence(lead, counts)]
        if clock == WALL_CLOCK:
            text.append(_wall_sentence(arms, speeds))
    return text + of_rounds  # what rounds do hangs on no clock


def _speed_sentence(where: str, lead: str, pearl: str | None, speeds: dict[str, Any]) -> str:
    speed = speeds["arms"][lead]
    found = [f"{_compared(speed['speedup'], 1.0)} plain decoding, {times(speed['speedup'])}"]
    gains = {f"the best static draft ({shown_name(speeds['static'])})": speed["gain"]}
    if pearl is not None:
        gains[shown_name(pearl)] = speed["gain_over_pearl"]
    found += [f"{_compared(gain, 0.0)} {name}, {percent(gain)}" for name, gain in gains.items() if known(gain)]
    return f"{where} {shown_name(lead)} is {'; '.join(found)}."


def _rollback_sentence(lead: str, pearl: str | None, counts: dict[str, Any]) -> list[str]:
    if pearl is None:
        return []
    count, difference = counts["arms"][lead], counts["arms"][lead]["rollback_less_pearl"]
    rates = [counts["arms"][arm]["rollback_rate"]["value"] for arm in (lead, pearl)]
    if None in rates or not known(difference):
        return [f"The rollback rates of {shown_name(lead)} and {shown_name(pearl)} are not compared: no prompt shows both."]
    hits = count["hits_per_branch_point"]["value"]
    found = "" if hits is None else f"; {100 * hits:.0f} % of its branch points end in a hit"
    return [
        f"{shown_name(lead)} rolls back {100 * rates[0]:.0f} % of the levels it drafts, {shown_name(pearl)} "
        f"{100 * rates[1]:.0f} %: {_compared(difference, 0.0, 'surely more than', 'surely less than')} that one, "
        f"{points(difference)}{found}."
    ]


def _bypassed_sentence(lead: str, counts: dict[str, Any]) -> list[str]:
    """That a learned controller did not decide, where it did not."""
    count = counts["arms"][lead]
    if not count["bypassed"]:
        return []
    share = f"{100 * count['bypassed'] / count['rounds']:.0f} %"
    return [
        f"In {share} of {shown_name(lead)}'s rounds its head was bypassed, being calibrated for other settings or states, and "
        "static lengths decided."
    ]


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


def _compared(interval: Interval, bar: float, above: str = "faster than", below: str = "slower than") -> str:
    """Where a whole interval lies."""
    low, high = interval["low"], interval["high"]
    assert low is not None and high is not None
    if low > bar:
        return above
    return below if high < bar else "not told apart from"


def _first(arms: list[str], presets: tuple[str, ...]) -> str | None:
    by_preset = {parts.preset: arm for arm in arms if (parts := branch_arm(arm)) is not None}
    return next((by_preset[preset] for preset in presets if preset in by_preset), None)
