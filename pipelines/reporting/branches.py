"""Section ``branches``: what drafting during the target's pass is worth, on a virtual clock and really concurrent.

target idle   the target's waiting / the time, over rounds that follow a hit      rollback rate   rolled back / levels
hits          branch points of which a branch was kept

Every method stands for the γ that validation prompts chose. PEARL is compared on the virtual clock.
"""

from dataclasses import replace

from matplotlib.figure import Figure

from pipelines.measuring.names import BRANCH_PRESETS, CHAIN, PEARL, PLAIN, BranchArm, branch_arm
from pipelines.reporting.comparison import Comparison, at
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import GREY, ORANGE, draw, whiskers
from pipelines.reporting.section import EFFICIENCY, OVER_CHAIN, SPEEDUP, Picture, Row, Section, Table
from pipelines.reporting.text import GAIN, Interval, shown, surely_above
from pipelines.reporting.timelines import timelines

COUNTS = (EFFICIENCY, "target idle", "rollback rate", "hits per branch point")
CLOCKS = {"virtual clock, or sequential": (GREY, "D"), "concurrent": (ORANGE, "o")}
NOTES = (
    "These methods draft on while the target verifies; what follows a rejected token is rolled back. Speed-up and gains are on a "
    "virtual clock: of a pass and the drafting during it only the longer counts. That is an estimate, not a measured speed-up. "
    "The concurrent gain is of wall-clock time, with both models at work on this machine's threads. The static chain and "
    "SpecBranch without branches are sequential. Target idle: the target's waiting in rounds after a hit.",
)
Gains = dict[tuple[str, BranchArm], Interval]  # by sampling setting, over the best static chain


def section(inputs: Inputs) -> Section | None:
    """``None`` where no branch-parallel arm was timed."""
    measured, compared = inputs.measured, inputs.comparison
    made = {setting: some for setting in measured.settings if (some := methods(measured, setting))}
    if not made:
        return None
    arms = [(setting, one) for setting, some in made.items() for arm in some for one in (arm, _twin(arm))]
    gains = {(setting, arm): compared.gain(arm.name, CHAIN, at(setting)) for setting, arm in arms}
    greedy = {arm.name for setting, arm in arms if measured.greedy(setting)}
    picture = Picture("branches", draw(_gains, gains), "Gain over the best static chain on both clocks.")
    return Section(
        "branches",
        "Drafting while the target verifies",
        finding(gains),
        [_table(compared, setting, some, gains) for setting, some in made.items()],
        [picture, *timelines(inputs.of("measured"), greedy)],
        NOTES,
    )


def methods(measured: Measured, setting: str) -> list[BranchArm]:
    """One of each family at a sampling setting, by its name on the virtual clock: the γ chosen on validation prompts for it or
    for its twin there, else the only one."""
    chosen = {family: branch_arm(arm) for family, arm in measured.choices(setting).items()}
    kept: dict[str, BranchArm] = {}
    for arm in filter(None, map(branch_arm, measured.arms(setting))):
        best = chosen.get(arm.family) or chosen.get(arm.preset)
        if best is not None and best.lengths != arm.lengths:
            continue
        if arm.family in kept:
            raise ValueError(f"{arm.family} at {setting}: no choice between its arms. Run the measure stage again.")
        kept[arm.family] = arm
    found = {replace(arm, wall=False) for arm in kept.values()}
    return sorted(found, key=lambda arm: (BRANCH_PRESETS.index(arm.preset), arm.lengths))


def finding(gains: Gains) -> str:
    """What real concurrency brings, and what the virtual clock says."""
    known = {key: gain for key, gain in gains.items() if gain["value"] is not None}
    real, virtual = ({key: known[key] for key in known if getattr(key[1], clock)} for clock in ("wall", "virtual"))
    sure = {key: gain for key, gain in real.items() if surely_above(gain)}
    none = "On the wall clock nothing surely beats the best static chain"
    said = none if real else "No method ran both models concurrently"
    if sure:
        said = f"Surely over the best static chain on the wall clock: {_best(sure)}"
    return f"{said}; highest on the virtual clock: {_best(virtual)}." if virtual else f"{said}."


def _best(gains: Gains) -> str:
    (setting, arm), gain = max(gains.items(), key=lambda item: item[1]["value"] or 0.0)
    return f"{arm_name(replace(arm, wall=False).name)}, {shown(gain, GAIN)} at {setting}"


def _twin(arm: BranchArm) -> BranchArm:
    """The same with both models really at once."""
    return replace(arm, wall=True)


def _table(compared: Comparison, setting: str, arms: list[BranchArm], gains: Gains) -> Table:
    """The best static chain first."""
    by, pearl = at(setting), next((arm.name for arm in arms if arm.preset == PEARL), "")

    def row(name: str, counted: str, over: Interval | None, over_pearl: Interval | None, real: Interval | None) -> Row:
        speeds = {"method": arm_name(name), SPEEDUP: compared.speedup(name, PLAIN, by), OVER_CHAIN: over}
        speeds |= {"gain over PEARL": over_pearl, f"concurrent: {OVER_CHAIN}": real}
        return {**speeds, **compared.counts(counted, COUNTS, by)}

    rows = [row(CHAIN, CHAIN, None, None, None)]
    for arm in arms:
        name, twin = arm.name, _twin(arm)
        over_pearl = compared.gain(name, pearl, by) if arm.virtual and name != pearl else None
        counted = name if len(compared.rows(name, by)) else twin.name
        rows.append(row(name, counted, gains[setting, arm], over_pearl, gains[setting, twin]))
    return Table(rows, setting, frozenset({arm_name(CHAIN)}))


def _gains(gains: Gains) -> Figure:
    panels: dict[str, dict[str, list[Interval | None]]] = {}
    for (setting, arm), gain in gains.items():
        panels.setdefault(setting, {}).setdefault(arm_name(replace(arm, wall=False).name), []).append(gain)
    return whiskers(panels, "gain over the best static chain", line=0, percent=True, looks=CLOCKS)
