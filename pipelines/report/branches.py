"""Section ``branches``: what drafting during the target's pass is worth.

target idle   the target's waiting / the time, over rounds that follow a hit      rollback rate   rolled back / levels
hits          branch points of which a branch was kept

Every method stands for the γ that validation prompts chose.
"""

from pipelines.measuring import names
from pipelines.measuring.names import CHAIN, PEARL, BranchArm, branch_arm
from pipelines.report.comparison import By, TimedArms, places
from pipelines.report.inputs import Inputs
from pipelines.report.plots import picture, whiskers
from pipelines.report.section import EFFICIENCY, OVER_CHAIN, SPEEDUP, Cell, Section, Table, column, grid
from pipelines.report.text import arm_name, highest, surely_above

COUNTS = (EFFICIENCY, "target idle", "rollback rate", "hits per branch point")
NOTES = (
    "These methods draft on while the target verifies; what follows a rejected token is rolled back. The static chain and "
    "SpecBranch without branches are sequential. Target idle: the target's waiting in rounds after a hit.",
)
VIRTUAL = (
    "Times of methods that ran one model after the other (overlap none) are a virtual clock's: of a pass and the drafting "
    "during it only the longer counts. That is an estimate, not a measured speed-up."
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where no branch-parallel arm was timed."""
    measured = inputs.measured
    made = {setting: some for setting in measured.settings if (some := methods(measured, setting))}
    if not made:
        return None
    tables = [_table(measured, setting, [arm.name for arm in some]) for setting, some in made.items()]
    own = [table.only({arm_name(arm.name) for arm in some}) for table, some in zip(tables, made.values(), strict=True)]
    gains = column(own, OVER_CHAIN)
    sure = {name: gain for name, gain in gains.items() if surely_above(gain)}
    virtual = bool(measured.test["virtual"].any())
    finding = f"Surely over the best static chain{' on the virtual clock' if virtual else ''}: {highest(sure)}"
    finding += f"; highest estimate: {highest(gains)}."
    label = "gain over the best static chain, %"
    pictures = [picture("branches", "Gains over the best static chain.", whiskers, tables, [OVER_CHAIN], label)]
    notes = [*NOTES, *([VIRTUAL] if virtual else [])]
    return Section("branches", "Drafting while the target verifies", finding, tables, pictures, notes)


def methods(compared: TimedArms, setting: str) -> list[BranchArm]:
    """One of each family at a sampling setting: of the γ chosen on validation prompts, else the only one."""
    chosen = {family: branch_arm(arm) for family, arm in compared.choices(setting).items()}
    kept: dict[str, BranchArm] = {}
    for arm in filter(None, map(branch_arm, compared.arms(setting))):
        best = chosen.get(arm.family)
        if best is not None and best.lengths != arm.lengths:
            continue
        if arm.family in kept:
            raise ValueError(f"{arm.family} at {setting}: no choice between its arms. Run the measure stage again.")
        kept[arm.family] = arm
    return sorted(kept.values(), key=lambda arm: (names.BRANCH_PRESETS.index(arm.preset), arm.lengths))


def _table(compared: TimedArms, setting: str, arms: list[str]) -> Table:
    """The best static chain first."""
    pearl = next((arm for arm in arms if arm.startswith(PEARL)), "")

    def over_pearl(arm: str, by: By) -> Cell:
        return compared.gained(arm, pearl, by) if arm in arms and not arm.startswith(names.WITHOUT_BRANCHES) else None

    columns = compared.metrics(SPEEDUP, OVER_CHAIN) | {"gain over PEARL": over_pearl} | compared.metrics(*COUNTS)
    return grid("method", places([CHAIN, *arms], By(setting)), columns, setting, marked={arm_name(CHAIN)})
