"""Section ``branches``: what drafting during the target's pass is worth, on a virtual clock.

target idle   the target's waiting / the time, over rounds that follow a hit      rollback rate   rolled back / levels
hits          branch points of which a branch was kept

Every method stands for the γ that validation prompts chose. PEARL is compared on the virtual clock.

Picture ``timelines``: what draft and target did when, in the first rounds of one greedy generation by each arm. Hatched is the
share of drafted levels that never reached the output. Of G levels during a pass 1 + a stay if the round hit and the next one
accepted a of what was retained, none without a hit. Of m levels before a pass that accepts a of them, a stay.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipelines.measuring import names
from pipelines.measuring.names import CHAIN, PEARL, BranchArm, branch_arm, on_virtual_clock
from pipelines.outputs import read_json
from pipelines.reporting.comparison import By, Comparison, places
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.plots import PHASE_COLOURS, picture, whiskers
from pipelines.reporting.section import EFFICIENCY, OVER_CHAIN, SPEEDUP, Cell, Picture, Section, Table, column, grid
from pipelines.reporting.text import arm_name, highest

COUNTS = (EFFICIENCY, "target idle", "rollback rate", "hits per branch point")
NOTES = (
    "These methods draft on while the target verifies; what follows a rejected token is rolled back. Speed-up and gains are on a "
    "virtual clock: of a pass and the drafting during it only the longer counts. That is an estimate, not a measured speed-up. "
    "The static chain and SpecBranch without branches are sequential. Target idle: the target's waiting in rounds after a hit.",
)

NUM_ROUNDS = 12  # the arm that is through them first ends the common time axis
LOST = "#f8dfa8"
VAIN: dict[str, Any] = {"facecolor": LOST, "edgecolor": PHASE_COLOURS["draft"], "hatch": "////"}
SHOWN = {"draft": "draft", "target": "target's pass", "verify": "verify", "controller": "predictor", "wait": "waiting"}
LANES = {"draft": 1.0, "target": 0.0}
CAPTION = (
    "First rounds after the prefill of one greedy generation, the same prompt for every arm. Upper lane: draft. "
    "Hatched drafting never reached the output; lines end rounds; numbers are tokens emitted."
)
Rounds = Sequence[dict[str, Any]]


def section(inputs: Inputs) -> Section | None:
    """``None`` where no branch-parallel arm was timed."""
    measured = inputs.measured
    made = {setting: some for setting in measured.settings if (some := methods(measured, setting))}
    if not made:
        return None
    tables = [_table(measured, setting, some) for setting, some in made.items()]
    virtual = {arm_name(arm.name) for some in made.values() for arm in some if arm.virtual}
    greedy = {arm.name for setting, some in made.items() if measured.greedy(setting) for arm in some}
    label = "gain over the best static chain, %"
    gained = picture("branches", "Gains over the best static chain.", whiskers, tables, [OVER_CHAIN], label)
    estimated = column([table.only(virtual) for table in tables], OVER_CHAIN)
    finding = f"Highest over the best static chain, on the virtual clock: {highest(estimated)}."
    pictures = [gained, *timelines(inputs.of("measured"), greedy)]
    return Section("branches", "Drafting while the target verifies", finding, tables, pictures, NOTES)


def methods(compared: Comparison, setting: str) -> list[BranchArm]:
    """One of each family at a sampling setting: the γ chosen on validation prompts for it, else the only one."""
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


def _table(compared: Comparison, setting: str, arms: list[BranchArm]) -> Table:
    """The best static chain first."""
    by = By(setting)
    pearl = next((arm.name for arm in arms if arm.preset == PEARL), "")

    def over_pearl(arm: str, by: By) -> Cell:
        return compared.gained(arm, pearl, by) if on_virtual_clock(arm) else None

    columns = compared.metrics(SPEEDUP, OVER_CHAIN) | {"gain over PEARL": over_pearl} | compared.metrics(*COUNTS)
    return grid("method", places([CHAIN, *(arm.name for arm in arms)], by), columns, setting, marked={arm_name(CHAIN)})


def timelines(folder: Path, arms: Iterable[str]) -> Iterator[Picture]:
    """Of the branch-parallel ``arms`` and of others; nothing where none was recorded in a measurement's ``folder``."""
    kept = {arm for arm in arms if getattr(branch_arm(arm), "preset", None) not in names.VARIANTS}
    recorded = read_json(folder / names.TIMELINES) if (folder / names.TIMELINES).is_file() else {}
    shown = {
        arm: decoded
        for arm, rounds in recorded.items()
        if (branch_arm(arm) is None or arm in kept)
        and (decoded := [one for one in rounds if not one["prefill"] and one["spans"]])
    }
    if shown:
        yield picture("timelines", CAPTION, drawn, shown)


def drawn(arms: dict[str, Rounds]) -> Figure:
    """One panel per arm, two lanes each, on one time axis in milliseconds since the prefill."""
    window = 1e3 * min(_end(rounds[:NUM_ROUNDS][-1]) - _start(rounds[0]) for rounds in arms.values())
    figure = Figure(figsize=(10.2, 0.9 + 1.05 * len(arms)), layout="constrained")
    panels = list(figure.subplots(len(arms), 1, squeeze=False, sharex=True)[:, 0])
    for axes, (name, rounds) in zip(panels, arms.items(), strict=True):
        _draw_arm(axes, rounds, window)
        axes.set_title(f"{arm_name(name)}{', virtual clock' if on_virtual_clock(name) else ''}", fontsize=9.5)
    panels[-1].set(xlabel="milliseconds since the prefill", xlim=(0, window))
    handles = [Patch(facecolor=PHASE_COLOURS[phase], label=label) for phase, label in SHOWN.items()]
    handles.insert(1, Patch(**VAIN, label="drafted in vain"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def lost_shares(rounds: Rounds) -> Iterator[tuple[float, float]]:
    """By round, the lost share of what was drafted before its pass and of what was drafted during it. What becomes of the last
    round's branch is unknown: nothing of it counts as lost if it hit."""
    for record, following in zip_longest(rounds, rounds[1:]):
        overlaps = any(span[4] for span in record["spans"]) or record["idle_levels"] > 0 or record["hit"]
        drafted = record["idle_levels"] if overlaps else record["levels"]
        before, during = 1 - _accepted(record) / drafted if drafted else 0.0, float(not record["hit"])
        if record["hit"] and following is not None and record["levels"] > drafted:
            during = 1 - (1 + _accepted(following)) / (record["levels"] - drafted)
        yield before, during


def _draw_arm(axes: Axes, rounds: Rounds, window: float) -> None:
    origin = _start(rounds[0])

    def bar(lane: str, start: float, end: float, **style: Any) -> None:
        axes.broken_barh([(1e3 * (start - origin), 1e3 * (end - start))], (LANES[lane] - 0.4, 0.8), **style)

    for record, lost in zip(rounds, lost_shares(rounds), strict=True):
        start, end = (1e3 * (time - origin) for time in (_start(record), _end(record)))
        if start >= window:
            break
        for lane, phase, *stretch, _ in record["spans"]:
            if phase in SHOWN:
                bar(lane, *stretch, color=PHASE_COLOURS[phase])
        for during, share in enumerate(lost):
            drafting = [span[2:4] for span in record["spans"] if span[:2] == ["draft", "draft"] and span[4] == during]
            left = share * sum(end - start for start, end in drafting)  # of their joint length the last share is lost
            for begun, done in reversed(drafting):
                taken = min(left, done - begun)
                left -= taken
                if taken > 0:
                    bar("draft", done - taken, done, **VAIN, linewidth=0)
        axes.axvline(end, color="#333333", linewidth=0.7)
        if end <= window:
            axes.text((start + end) / 2, 1.52, f"+{record['emitted']}", ha="center", fontsize=8)
    axes.set_yticks(list(LANES.values()), list(LANES))
    axes.set_ylim(-0.5, 2.05)
    axes.tick_params(axis="y", length=0)


def _accepted(record: dict[str, Any]) -> int:
    return int(min(record["accepted"], record["submitted"]))


def _start(record: dict[str, Any]) -> float:
    return float(min(span[2] for span in record["spans"]))


def _end(record: dict[str, Any]) -> float:
    return float(max(span[3] for span in record["spans"] if span[0] == "target"))
