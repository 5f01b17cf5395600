"""Section ``branches``: what drafting during the target's pass is worth, on a virtual clock and really concurrent.

target idle     the target's waiting / the time, over rounds that follow a hit      rolled back     rolled back / levels
of prediction   share of the speed that the latency profile says for the same rounds, over plain decoding's share

Every method stands for the γ that validation prompts chose. PEARL is compared on the virtual clock.
"""

from dataclasses import replace

from matplotlib.figure import Figure

from pipelines.measuring.names import BRANCH_PRESETS, CHAIN, PEARL, PLAIN, BranchArm, branch_arm
from pipelines.reporting.branch_prediction import predicted_seconds
from pipelines.reporting.comparison import By, at, rate_ratio
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import GREY, ORANGE, draw, whiskers
from pipelines.reporting.section import Cell, Column, Picture, Section, Table
from pipelines.reporting.text import GAIN, NUMBER, SHARE, TIMES, Interval, shown, surely_above
from pipelines.reporting.timelines import timelines

COLUMNS = (
    Column("method"),
    Column("speed-up over plain", TIMES),
    Column("gain over best static chain", GAIN),
    Column("gain over PEARL", GAIN),
    Column("concurrent: gain over best static chain", GAIN),
    Column("concurrent: of prediction", SHARE),
    Column("target idle", SHARE),
    Column("tokens per target pass", NUMBER),
    Column("rolled back", SHARE),
)
NEEDED = {"beside_target", "branch_candidates"}  # tables of a profile that knows branches
CLOCKS = {"virtual clock, or sequential": (GREY, "D"), "concurrent": (ORANGE, "o")}
NOTES = (
    "These methods draft on while the target verifies; what follows a rejected token is rolled back. The first columns are on a "
    "virtual clock: of a pass and the drafting during it only the longer counts. That is an estimate, not a measured speed-up. "
    "The static chain and SpecBranch without branches are sequential.",
    "Concurrent columns are wall-clock times of both models at work on this machine's threads. Of prediction: share of the "
    "latency profile's speed for the same rounds, over plain decoding's. Target idle: its waiting in rounds after a hit.",
)
Gains = dict[tuple[str, BranchArm], Interval]  # by sampling setting, over the best static chain


def section(inputs: Inputs) -> Section | None:
    """``None`` where no branch-parallel arm was timed."""
    measured, compared = inputs.measured, inputs.comparison
    made = {setting: arms for setting in measured.settings if (arms := methods(measured, setting))}
    if not made:
        return None
    gains = {
        (setting, one): compared.gain(one.name, CHAIN, at(setting))
        for setting, arms in made.items()
        for arm in arms
        for one in (arm, concurrent(arm))
    }
    tables = [
        Table(COLUMNS, _rows(inputs, at(setting), arms), setting, frozenset({0})) for setting, arms in made.items()
    ]
    greedy = next((arms for setting, arms in made.items() if measured.greedy(setting)), [])
    return Section(
        "branches",
        "Drafting while the target verifies",
        finding(gains),
        tuple(tables),
        (
            Picture("branches", draw(_gains, made, gains), "Gain over the best static chain on both clocks."),
            *timelines(inputs.of("measured"), [name for arm in greedy for name in (arm.name, concurrent(arm).name)]),
        ),
        NOTES,
    )


def methods(measured: Measured, setting: str) -> list[BranchArm]:
    """One of each family at a sampling setting, by its name on the virtual clock: the γ chosen on validation prompts for it or
    for its twin there, else the only one."""
    timed = [arm for name in measured.arms(setting) if (arm := branch_arm(name)) is not None]
    chosen = {family: branch_arm(arm) for family, arm in measured.choices(setting).items()}
    kept: dict[str, BranchArm] = {}
    for arm in timed:
        best = chosen.get(arm.family) or chosen.get(arm.preset)
        if best is not None and best.lengths != arm.lengths:
            continue
        if arm.family in kept:
            raise ValueError(f"{arm.family} at {setting}: no choice between its arms. Run the measure stage again.")
        kept[arm.family] = arm
    found = {replace(arm, wall=False) for arm in kept.values()}
    return sorted(found, key=lambda arm: (BRANCH_PRESETS.index(arm.preset), arm.lengths))


def concurrent(arm: BranchArm) -> BranchArm:
    """The same with both models really at work at once."""
    return replace(arm, wall=True)


def finding(gains: Gains) -> str:
    """What real concurrency brings, and what the virtual clock says."""
    known = {key: gain for key, gain in gains.items() if gain["value"] is not None}
    real, virtual = ({key: known[key] for key in known if getattr(key[1], clock)} for clock in ("wall", "virtual"))
    sure = {key: gain for key, gain in real.items() if surely_above(gain)}
    none = "Really concurrent, no method surely beats the best static chain"
    said = f"Really concurrent, {_best(sure)}" if sure else none if real else "No method ran both models concurrently"
    return f"{said}; on the virtual clock {_best(virtual)} over it." if virtual else f"{said}."


def _best(gains: Gains) -> str:
    (setting, arm), gain = max(gains.items(), key=lambda item: item[1]["value"] or 0.0)
    return f"{arm_name(replace(arm, wall=False).name)} gains {shown(gain, GAIN)} at {setting}"


def _rows(inputs: Inputs, by: By, arms: list[BranchArm]) -> tuple[tuple[Cell, ...], ...]:
    """The best static chain first."""
    compared = inputs.comparison
    pearl = next((arm.name for arm in arms if arm.preset == PEARL), "")

    def counts(name: str) -> list[Cell]:
        pairs = ("seconds_steady_wait", "seconds_steady"), ("emitted", "rounds"), ("rolled_back", "levels")
        return [compared.rate(name, *pair, by)["value"] for pair in pairs]

    rows: list[tuple[Cell, ...]] = [(arm_name(CHAIN), compared.speedup(CHAIN, PLAIN, by), *[None] * 4, *counts(CHAIN))]
    for arm in arms:
        name, twin = arm.name, concurrent(arm).name
        over_pearl = compared.gain(name, pearl, by) if arm.virtual and name != pearl else None
        gains = compared.gain(name, CHAIN, by), over_pearl, compared.gain(twin, CHAIN, by)
        counted = name if len(compared.rows(name, by)) else twin
        told = _of_prediction(inputs, twin, by)
        rows.append((arm_name(name), compared.speedup(name, PLAIN, by), *gains, told, *counts(counted)))
    return tuple(rows)


def _of_prediction(inputs: Inputs, arm: str, by: By) -> float | None:
    """A machine that is slower than when it was profiled is so for plain decoding, too. ``None`` without a profile that knows."""
    profile, sides = inputs.profile, inputs.comparison.pair(arm, PLAIN, by)
    if profile is None or not set(profile.tables) >= NEEDED:
        return None
    told, plain = (
        [predicted_seconds(run, inputs.measured.rounds_of(run), profile) for _, run in side.reset_index().iterrows()]
        for side in sides
    )
    return rate_ratio(sides[0]["document"], told, sides[0]["seconds"], plain, sides[1]["seconds"])["value"]


def _gains(made: dict[str, list[BranchArm]], gains: Gains) -> Figure:
    virtual, real = CLOCKS.values()
    panels = [
        (
            setting,
            [
                (arm_name(arm.name), [(gains[setting, arm], virtual), (gains[setting, concurrent(arm)], real)])
                for arm in arms
            ],
        )
        for setting, arms in made.items()
    ]
    return whiskers(panels, "gain over the best static chain", line=0, percent=True, legend=CLOCKS)
