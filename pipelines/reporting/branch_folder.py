"""Branch-parallel arms of a finished measurement, apart from the others: some of their times are a virtual clock's."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import (
    BRANCH_PRESETS,
    EXPLICIT,
    PAPER,
    PEARL,
    PRIOR,
    SPECBRANCH,
    TIMELINES,
    WITHOUT_BRANCHES,
    WITHOUT_HRAD,
    BranchArm,
    branch_arm,
)
from pipelines.reporting.names import arm_name
from pipelines.reporting.measured_folder import Measured

PRESET_NAMES = {
    PEARL: "PEARL",
    SPECBRANCH: "SpecBranch",
    PAPER: "SpecBranch as in its paper",
    PRIOR: "SpecBranch as in its paper, a priori",
    EXPLICIT: "SpecBranch with an explicit length",
    WITHOUT_HRAD: "SpecBranch without H-RAD",
    WITHOUT_BRANCHES: "SpecBranch without branches",
}
VIRTUAL_CLOCK, WALL_CLOCK = "virtual", "wall"
Timelines = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class BranchArms:
    """``whole`` is the measurement with every arm."""

    whole: Measured

    def arms(self, setting: str) -> dict[str, BranchArm]:
        """One arm of each family at a sampling setting: that of the γ chosen on validation prompts, else the only one measured;
        those on the virtual clock first. A family without a choice of its own takes the γ of its twin on the virtual clock.
        """
        timed = filter(None, map(branch_arm, self.whole.arms(setting)))
        measured = sorted(timed, key=lambda arm: (arm.wall, BRANCH_PRESETS.index(arm.preset), arm.lengths))
        chosen = {}
        for family in dict.fromkeys(arm.family for arm in measured):
            members = [arm for arm in measured if arm.family == family]
            lengths = self._lengths(family, members[0].preset, setting)
            members = [arm for arm in members if lengths in (None, arm.lengths)]
            if not members:
                continue  # test prompts were too few for it to have its turn
            if len(members) > 1:
                raise ValueError(
                    f"{family} at {setting}: {len(members)} arms were measured at γ = {lengths}. Run the measure stage again."
                )
            chosen[members[0].name] = members[0]
        return chosen

    def drawn(self, timelines: Timelines) -> Timelines:
        """Those of greedy generations that are worth a look: without the γ of another sampling setting."""
        greedy = [setting for setting in self.whole.settings if self.whole.greedy(setting)]
        shown = self.arms(greedy[0]) if greedy else timelines
        return {arm: rounds for arm, rounds in timelines.items() if branch_arm(arm) is None or arm in shown}

    def clock(self, arm: str, setting: str) -> str:
        """Whose clock an arm's seconds are of."""
        runs = self.whole.test
        virtual = runs.loc[(runs["arm"] == arm) & (runs["setting"] == setting), "virtual"]
        return VIRTUAL_CLOCK if virtual.any() else WALL_CLOCK

    def counted(self, arm: str, setting: str) -> pd.DataFrame:
        """Runs of an arm, each text once, by prompt and repeat."""
        runs = self.whole.counted
        same = (runs["arm"] == arm) & (runs["setting"] == setting)
        return runs[same].set_index(["prompt", "repeat"]).sort_index()

    def _lengths(self, family: str, preset: str, setting: str) -> tuple[int, ...] | None:
        arms = {made: branch_arm(arm) for made, arm in self.whole.choices(setting).items()}
        arm = arms.get(family) or arms.get(preset)
        return None if arm is None else arm.lengths


def read_timelines(folder: Path) -> Timelines:
    """Timelines by arm in the order they are drawn; empty where none were recorded."""
    path = folder / TIMELINES
    if not path.is_file():
        return {}
    try:
        timelines: Timelines = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: damaged ({error}). Run the measure stage again.") from error
    return {arm: timelines[arm] for arm in sorted(timelines, key=_order)}


def shown_name(arm: str) -> str:
    """An arm as a person reads it, without its clock."""
    parts = branch_arm(arm)
    return arm_name(arm) if parts is None else f"{PRESET_NAMES[parts.preset]} γ={'/'.join(map(str, parts.lengths))}"


def _order(arm: str) -> tuple[int, bool, str]:
    """Arms of other kinds first; then by preset, its two clocks next to each other."""
    parts = branch_arm(arm)
    return (-1, False, arm) if parts is None else (BRANCH_PRESETS.index(parts.preset), parts.wall, arm)
