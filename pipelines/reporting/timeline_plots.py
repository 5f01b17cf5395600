"""The pipeline diagram: what draft and target did when, in the first rounds of one generation by each arm.

Of the draft's work the share of levels that never reached the output is hatched: with G levels during a pass, 1 + a of them stay
if the round hit and the next one accepted a of what was retained, none if it did not hit; with m levels drafted before a pass
that accepts a of them, a stay.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipelines.measuring.names import WITHOUT_BRANCHES, branch_arm
from pipelines.reporting.branch_folder import Timelines, shown_name
from pipelines.reporting.plots import PHASE_COLOURS
from predictors.rounds import LANES

NUM_ROUNDS = 12  # the arm that is through them first ends the common time axis
LOST = "#f8dfa8"
SHOWN = {"draft": "draft", "target": "target's pass", "verify": "verify", "controller": "predictor", "wait": "waiting"}
LANE_PLACES = {"draft": 1.0, "target": 0.0}
THICKNESS = 0.8
Stretch = tuple[float, float]  # start and end in seconds


def timeline_figure(timelines: Timelines) -> Figure:
    """One panel per arm, two lanes each, on one time axis in milliseconds since the prefill."""
    arms = {name: decoded for name, rounds in timelines.items() if (decoded := _after_prefill(rounds))}
    window = min(_end(rounds[:NUM_ROUNDS]) - _start(rounds) for rounds in arms.values())
    figure = Figure(figsize=(10.2, 0.9 + 1.05 * len(arms)), layout="constrained")
    panels = list(figure.subplots(len(arms), 1, squeeze=False, sharex=True)[:, 0])
    for axes, (name, rounds) in zip(panels, arms.items(), strict=True):
        _draw_arm(axes, rounds, window)
        axes.set_title(f"{shown_name(name)}{_clock(name)}", fontsize=9.5)
    panels[-1].set(xlabel="milliseconds since the prefill", xlim=(0, 1e3 * window))
    handles = [Patch(facecolor=PHASE_COLOURS[phase], label=label) for phase, label in SHOWN.items()]
    handles.insert(1, Patch(facecolor=LOST, edgecolor=PHASE_COLOURS["draft"], hatch="////", label="drafted in vain"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def timeline_text(timelines: Timelines) -> str:
    """The diagram in words: what share of the time each arm's target waited; empty without one."""
    parts = []
    for name, rounds in timelines.items():
        decoded = _after_prefill(rounds)
        if decoded:
            spans = [span for record in decoded for span in record["spans"]]
            waited = sum(end - start for lane, phase, start, end, _ in spans if (lane, phase) == ("target", "wait"))
            share = waited / (_end(decoded) - _start(decoded))
            parts.append(f"{shown_name(name)}{_clock(name)}: {len(decoded)} rounds, target waiting {100 * share:.0f} %")
    if not parts:
        return ""
    return f"Pipeline diagram, a draft lane above a target lane for every arm. {'; '.join(parts)}."


def lost_shares(rounds: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """By round, the lost share of what was drafted before its pass and of what was drafted during it. What becomes of the last
    round's branch is unknown: nothing of it counts as lost if it hit."""
    shares = []
    for record, following in pairwise([*rounds, None]):
        assert record is not None
        before, beside = 0.0, float(not record["hit"])
        drafted = record["idle_levels"] if _overlaps(record) else record["levels"]
        levels_beside = record["levels"] - drafted
        if drafted:
            before = 1 - _accepted_in_sequence(record) / drafted
        if record["hit"] and following is not None and levels_beside:
            beside = 1 - (1 + _accepted_in_sequence(following)) / levels_beside
        shares.append((before, beside))
    return shares


def _draw_arm(axes: Axes, rounds: Sequence[dict[str, Any]], window: float) -> None:
    origin = _start(rounds)
    shown = [record for record in rounds if _start([record]) - origin < window]
    for record, lost in zip(shown, lost_shares(rounds), strict=False):
        for lane in LANES:
            for phase in SHOWN:
                spans = [_moved(span, origin) for span in record["spans"] if span[:2] == [lane, phase]]
                _bars(axes, spans, lane, color=PHASE_COLOURS[phase])
        for beside, share in zip((False, True), lost, strict=True):
            drafting = [span for span in record["spans"] if span[:2] == ["draft", "draft"] and span[4] == beside]
            stretches = list(_last_share([_moved(span, origin) for span in drafting], share))
            edge = PHASE_COLOURS["draft"]
            _bars(axes, stretches, "draft", facecolor=LOST, edgecolor=edge, hatch="////", linewidth=0)
        start, end = (1e3 * (time([record]) - origin) for time in (_start, _end))
        axes.axvline(end, color="#333333", linewidth=0.7)
        if end <= 1e3 * window:
            axes.text((start + end) / 2, 1.52, f"+{record['emitted']}", ha="center", fontsize=8)
    axes.set_yticks(list(LANE_PLACES.values()), list(LANE_PLACES))
    axes.set_ylim(-0.5, 2.05)
    axes.tick_params(axis="y", length=0)


def _bars(axes: Axes, stretches: Sequence[Stretch], lane: str, **style: Any) -> None:
    if stretches:
        widths = [(1e3 * start, 1e3 * (end - start)) for start, end in stretches]
        axes.broken_barh(widths, (LANE_PLACES[lane] - THICKNESS / 2, THICKNESS), **style)


def _last_share(stretches: Sequence[Stretch], share: float) -> Iterator[Stretch]:
    """The last ``share`` of the stretches' joint length."""
    left = share * sum(end - start for start, end in stretches)
    for start, end in reversed(stretches):
        taken = min(left, end - start)
        left -= taken
        if taken > 0:
            yield end - taken, end


def _after_prefill(rounds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in rounds if not record["prefill"] and record["spans"]]


def _moved(span: Sequence[Any], origin: float) -> Stretch:
    return span[2] - origin, span[3] - origin


def _start(rounds: Sequence[dict[str, Any]]) -> float:
    return float(min(span[2] for span in rounds[0]["spans"]))


def _end(rounds: Sequence[dict[str, Any]]) -> float:
    return float(max(span[3] for span in rounds[-1]["spans"] if span[0] == "target"))


def _overlaps(record: dict[str, Any]) -> bool:
    """Whether the round could draft during the target's pass: else all its levels were drafted before the pass."""
    return any(span[4] for span in record["spans"]) or record["idle_levels"] > 0 or record["hit"]


def _accepted_in_sequence(record: dict[str, Any]) -> int:
    return int(min(record["accepted"], record["submitted"]))


def _clock(name: str) -> str:
    parts = branch_arm(name)
    if parts is None or parts.preset == WITHOUT_BRANCHES:
        return ", sequential"
    return ", concurrent" if parts.wall else ", virtual clock"
