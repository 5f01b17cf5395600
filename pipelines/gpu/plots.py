"""Plots of the GPU benchmark's report."""

from typing import Any

from matplotlib.figure import Figure

from pipelines.gpu.ceilings import Ceilings
from pipelines.gpu.pairs import Sized
from pipelines.measuring.names import PLAIN, branch_arm
from pipelines.reporting.plots import BLUE, GREEN, GREY, ORANGE, RED
from predictors.latency.profile import LatencyProfile

Result = dict[str, Any]
LANES = (BLUE, ORANGE, GREEN, RED)


def against_prediction(sweeps: list[Result], temperature: float) -> Figure:
    """By cost of a draft step: what was predicted, measured and could at most be reached, one panel per kind of method."""
    kinds = {"chains": False, "branches concurrent with the target": True}
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, (title, beside) in zip(figure.subplots(1, 2, sharey=True), kinds.items(), strict=True):
        for key, colour, marker, label in (
            ("ceiling", GREY, "_", "ceiling: passes at the device's limit"),
            ("predicted", BLUE, "o", "prediction: work as timed alone"),
            ("tokens_per_second", RED, "x", "measured"),
        ):
            points = [
                (sweep["cost_ratio"], best[key] / best["plain"])
                for sweep, best in _fastest(sweeps, temperature, beside)
            ]
            axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=label)
        axes.axhline(1, color="#333333", linewidth=1)
        axes.set(title=f"Fastest of the {title}, T = {temperature:g}", xlabel="draft steps in a target pass (c)")
        axes.legend(fontsize=8)
        axes.grid(color="#e6e6e6")
    figure.axes[0].set_ylabel("multiple of plain decoding")
    return figure


def _fastest(sweeps: list[Result], temperature: float, beside: bool) -> list[tuple[Result, Result]]:
    found = []
    for sweep in sweeps:
        rows = [row for row in sweep["speeds"] if row["temperature"] == temperature]
        plain = next(row for row in rows if row["arm"] == PLAIN)
        covered = [row for row in rows if row is not plain and "predicted" in row]
        some = [row for row in covered if (branch_arm(row["arm"]) is not None) == beside]
        best = max(some, key=lambda row: row["tokens_per_second"])
        found.append((sweep, best | {"plain": plain["tokens_per_second"]}))
    return found


def device_work(picture: Result) -> Figure:
    """What each stream did in a few rounds."""
    streams = sorted({row[0] for row in picture["work"]})
    figure = Figure(figsize=(11, 0.8 + 0.6 * len(streams)), layout="constrained")
    axes = figure.subplots()
    for place, stream in enumerate(streams):
        stretches = [(1e3 * start, 1e3 * (end - start)) for other, start, end in picture["work"] if other == stream]
        axes.broken_barh(stretches, (place - 0.4, 0.8), color=LANES[place % len(LANES)])
    axes.set_yticks(range(len(streams)), [f"stream {stream:g}" for stream in streams])
    axes.set(title="Device work in a few rounds of branch-parallel decoding", xlabel="milliseconds")
    return figure


def cost_growth(growth: Result, ceilings: Ceilings) -> Figure:
    """Passes by context and by tokens, and work outside them by draft length, branches and vocabulary."""
    target = LatencyProfile.from_record(growth["passes"], "passes").table("target")
    model = Sized.from_record(growth["target"])
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    (by_context, by_tokens), (by_length, by_rows) = figure.subplots(2, 2)
    tokens, contexts = target.axes["tokens"], target.axes["context"]
    by_context.plot(contexts, 1e3 * target.median[0], "o-", color=BLUE, label="measured")
    least = [1e3 * ceilings.pass_seconds(model, 1, context) for context in contexts]
    by_context.plot(contexts, least, "_", color=GREY, label="least")
    by_context.set(title="A target pass of one token", xlabel="cached tokens", ylabel="milliseconds", ylim=(0, None))
    by_tokens.plot(tokens, 1e3 * target.median[:, 0], "o-", color=BLUE, label="measured")
    least = [1e3 * ceilings.pass_seconds(model, count, contexts[0]) for count in tokens]
    by_tokens.plot(tokens, least, "_", color=GREY, label="least")
    by_tokens.set(title=f"A target pass after {contexts[0]} tokens", xlabel="tokens of the pass", ylim=(0, None))
    outside = {name: LatencyProfile.from_record(record, name) for name, record in growth["outside"].items()}
    works = (
        (by_length, "drafted", "chain_drawing", "o-"),
        (by_length, "drafted", "chain_verification", "s--"),
        (by_rows, "rows", "branch_drawing", "o-"),
        (by_rows, "rows", "branch_candidates", "s--"),
    )
    for (vocabulary, profile), colour in zip(outside.items(), LANES, strict=False):
        for axes, by, kind, style in works:
            table = profile.table(kind)
            label = f"{kind.split('_')[1]}, {int(vocabulary):,} tokens"
            axes.plot(table.axes[by], 1e6 * table.median[:, -1], style, color=colour, label=label)
    by_length.set(title="Outside the passes of a chain's round, T = 1", xlabel="drafted tokens", ylabel="microseconds")
    by_rows.set(title="Outside the passes of a level of branches, T = 1", xlabel="branches")
    for axes in figure.axes:
        axes.grid(color="#e6e6e6")
        axes.legend(fontsize=8)
        axes.set_ylim(bottom=0)
    return figure
