"""Picture ``timelines``: what draft and target did when, in the first rounds of one greedy generation by each arm.

Hatched is the share of drafted levels that never reached the output. Of G levels during a pass 1 + a stay if the round hit and
the next one accepted a of what was retained, none without a hit. Of m levels before a pass that accepts a of them, a stay.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipelines.measuring.names import TIMELINES, VARIANTS, WALL, branch_arm, on_virtual_clock
from pipelines.outputs import read_json
from pipelines.reporting.plots import PHASE_COLOURS, picture
from pipelines.reporting.section import Picture
from pipelines.reporting.text import arm_name

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


def timelines(folder: Path, arms: Iterable[str]) -> Iterator[Picture]:
    """Of the branch-parallel ``arms``, on either clock, and of others; nothing where none was recorded in a measurement's
    ``folder``."""
    kept = {arm for arm in arms if getattr(branch_arm(arm), "preset", None) not in VARIANTS}
    recorded = read_json(folder / TIMELINES) if (folder / TIMELINES).is_file() else {}
    shown = {
        arm: decoded
        for arm, rounds in recorded.items()
        if (branch_arm(arm) is None or arm.removesuffix(WALL) in kept)
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
