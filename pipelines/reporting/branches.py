"""Section ``branches``: what drafting during the target's pass is worth, on a virtual clock and really concurrent.

target idle   the target's waiting / the time, over rounds that follow a hit      rollback rate   rolled back / levels
hits          branch points of which a branch was kept

Every method stands for the γ that validation prompts chose. PEARL is compared on the virtual clock.
"""

from dataclasses import replace
from functools import partial

from pipelines.measuring import names
from pipelines.measuring.names import CHAIN, PEARL, BranchArm, branch_arm, on_virtual_clock
from pipelines.reporting.comparison import By, Comparison, places
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.plots import picture, whiskers
from pipelines.reporting.section import EFFICIENCY, OVER_CHAIN, SPEEDUP, Cell, Section, Table, column, grid
from pipelines.reporting.text import Interval, arm_name, highest, surely_above

COUNTS = (EFFICIENCY, "target idle", "rollback rate", "hits per branch point")
REAL = f"concurrent: {OVER_CHAIN}"
NEVER = "No method ran both models concurrently"
NOTES = (
    "These methods draft on while the target verifies; what follows a rejected token is rolled back. Speed-up and gains are on a "
    "virtual clock: of a pass and the drafting during it only the longer counts. That is an estimate, not a measured speed-up. "
    "The concurrent gain is of wall-clock time, with both models at work on this machine's threads. The static chain and "
    "SpecBranch without branches are sequential. Target idle: the target's waiting in rounds after a hit.",
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where no branch-parallel arm was timed."""
    measured = inputs.measured
    made = {setting: some for setting in measured.settings if (some := methods(measured, setting))}
    if not made:
        return None
    tables = [_table(measured, setting, some) for setting, some in made.items()]
    virtual = {arm_name(arm.name) for some in made.values() for arm in some if arm.virtual}
    label = "gain over the best static chain, %"
    gained = picture("branches", "Gains on both clocks.", whiskers, tables, [OVER_CHAIN, REAL], label)
    real, estimated = gains(tables, virtual)
    sure = {name: gain for name, gain in real.items() if surely_above(gain)}
    said = f"Surely over the best static chain on the wall clock: {highest(sure)}"
    finding = f"{said if real else NEVER}; highest on the virtual clock: {highest(estimated)}."
    return Section("branches", "Drafting while the target verifies", finding, tables, [gained], NOTES)


def methods(compared: Comparison, setting: str) -> list[BranchArm]:
    """One of each family at a sampling setting, by its name on the virtual clock: the γ chosen on validation prompts for it or
    for its twin there, else the only one."""
    chosen = {family: branch_arm(arm) for family, arm in compared.choices(setting).items()}
    kept: dict[str, BranchArm] = {}
    for arm in filter(None, map(branch_arm, compared.arms(setting))):
        best = chosen.get(arm.family) or chosen.get(arm.preset)
        if best is not None and best.lengths != arm.lengths:
            continue
        if arm.family in kept:
            raise ValueError(f"{arm.family} at {setting}: no choice between its arms. Run the measure stage again.")
        kept[arm.family] = arm
    found = {replace(arm, wall=False) for arm in kept.values()}
    return sorted(found, key=lambda arm: (names.BRANCH_PRESETS.index(arm.preset), arm.lengths))


def gains(tables: list[Table], virtual: set[str]) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Over the best static chain: with both models really at once, and of methods on the virtual clock."""
    return column(tables, REAL), column([table.only(virtual) for table in tables], OVER_CHAIN)


def _table(compared: Comparison, setting: str, arms: list[BranchArm]) -> Table:
    """The best static chain first. Twins: the same arms whose models are really at work at once."""
    by, twins = By(setting), {arm.name: replace(arm, wall=True).name for arm in arms}
    pearl = next((arm.name for arm in arms if arm.preset == PEARL), "")

    def over_pearl(arm: str, by: By) -> Cell:
        return compared.gained(arm, pearl, by) if on_virtual_clock(arm) else None

    def concurrent(arm: str, by: By) -> Cell:
        return compared.metric(OVER_CHAIN, twins[arm], by) if arm in twins else None

    def count(name: str, arm: str, by: By) -> Cell:
        return compared.metric(name, arm if len(compared.rows(arm, by)) else twins[arm], by)

    columns = compared.metrics(SPEEDUP, OVER_CHAIN) | {"gain over PEARL": over_pearl, REAL: concurrent}
    columns |= {name: partial(count, name) for name in COUNTS}
    return grid("method", places([CHAIN, *twins], by), columns, setting, marked={arm_name(CHAIN)})
