"""Section ``speed``: how fast every main arm decodes, what its rounds came to, and where the time goes.

block efficiency = emitted / target passes      rollback rate = rolled back / levels      same text: greedy, as plain decoding's
"""

import pandas as pd
from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_FORWARD, HF_PLAIN, PLAIN, chain_gamma
from pipelines.reporting.comparison import Comparison, at, rate
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import PHASE_COLOURS, band, draw, stacked, styles
from pipelines.reporting.section import Check, Column, Picture, Row, Section, Table
from pipelines.reporting.text import GAIN, NUMBER, SHARE, TIMES, WHOLE, shown
from predictors.rounds import PHASES

COLUMNS = (
    Column("arm"),
    Column("prompts"),
    Column("tokens/s", WHOLE),
    Column("speed-up over plain", TIMES),
    Column("gain over best static chain", GAIN),
    Column("block efficiency", NUMBER),
    Column("drafted per round", NUMBER),
    Column("rollback rate", SHARE),
    Column("same text"),
)
SHARES = (*(phase for phase in PHASES if phase != "wait"), "rest")  # these arms' models work one after the other


def section(inputs: Inputs) -> Section:
    """Of the main arms; others have sections of their own."""
    measured, compared = inputs.measured.main, Comparison(inputs.measured.main)
    tables = tuple(
        _table(compared, setting, inputs.measured.exactness if measured.greedy(setting) else None)
        for setting in measured.settings
    )
    best = [(setting, measured.chosen(CHAIN, setting)) for setting in measured.settings]
    said = (
        f"{arm_name(arm)} {shown(compared.speedup(arm, PLAIN, at(setting)), TIMES)} at {setting}"
        for setting, arm in best
    )
    return Section(
        "speed",
        "How fast",
        f"The best static chain, chosen on validation prompts, over plain decoding: {', '.join(said)}.",
        (*tables, _slices(compared)),
        (
            Picture(
                "sweep",
                draw(_sweep, compared),
                "Speed-up by static draft length; the ring marks the validation choice.",
            ),
            Picture("shares", draw(_shares, compared), "Share of wall-clock time by phase."),
        ),
        (
            f"Intervals are 95 %, over documents. {measured.test['prompt'].nunique()} held-out prompts of "
            f"{measured.test['document'].nunique()} documents. Arms were timed interleaved in one process: chains and plain "
            "decoding on all prompts, other arms on some. Two arms are compared on the prompts that both decoded; "
            "every prompt weighs alike, while the gate weighs slices by their share.",
            *measured.findings["notes"],
        ),
        checks=tuple(_checks(compared)),
    )


def _table(compared: Comparison, setting: str, exact: dict[str, bool] | None) -> Table:
    measured, by = compared.measured, at(setting)
    chosen, rows = measured.choices(setting), []
    for arm in measured.arms(setting):
        decodes = compared.rows(arm, by)
        gain = None if arm == chosen[CHAIN] else compared.gain(arm, CHAIN, by)
        speeds = compared.pace(arm, by)["value"], compared.speedup(arm, PLAIN, by), gain
        rows.append((arm_name(arm), decodes.index.get_level_values("prompt").nunique(), *speeds, *_counts(decodes)))
    marked = frozenset(place for place, arm in enumerate(measured.arms(setting)) if arm in chosen.values())
    caption = setting
    if exact is not None:
        caption += f"; in float32 {sum(exact.values())} of {len(exact)} arms write Hugging Face's greedy text exactly"
    return Table(COLUMNS, tuple(rows), caption, marked)


def _counts(decodes: pd.DataFrame) -> tuple:
    """What rounds came to; nothing of arms that keep no count."""
    equal = decodes["equals_plain"].dropna()
    same = f"{int(equal.sum())}/{len(equal)}" if len(equal) else None
    if decodes["rounds"].isna().any() or not decodes["drafted"].sum():
        return None, None, None, same
    pairs = (("emitted", "rounds"), ("levels", "rounds"), ("rolled_back", "levels"))
    values = (rate(decodes["document"], decodes[amount], decodes[cost]) for amount, cost in pairs)
    efficiency, drafted, rolled_back = values
    return efficiency, drafted["value"], rolled_back["value"], same


def _slices(compared: Comparison) -> Table:
    measured = compared.measured
    names = sorted(measured.test["slice"].unique())
    choices = {family for setting in measured.settings for family in measured.choices(setting)} - {CHAIN}
    learned = [arm for arm, family in measured.families.items() if family == "learned"]
    columns = (Column("arm"), *(Column(name, GAIN) for name in names))
    rows: list[Row] = [
        (arm_name(arm), *(compared.gain(arm, CHAIN, at(slice_=name)) for name in names))
        for arm in [*sorted(choices), *learned]
    ]
    return Table(columns, tuple(rows), "Gain over the best static chain by slice, all sampling settings")


def _sweep(compared: Comparison) -> Figure:
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes, looks = figure.subplots(), styles(compared.measured.settings)
    for setting in compared.measured.settings:
        lengths = {gamma: arm for arm in compared.measured.arms(setting) if (gamma := chain_gamma(arm)) is not None}
        made = {gamma: compared.speedup(arm, PLAIN, at(setting)) for gamma, arm in lengths.items()}
        band(axes, list(made), list(made.values()), looks[setting], setting)
        best = chain_gamma(compared.measured.chosen(CHAIN, setting)) or 0
        axes.plot(best, made[best]["value"] or 0.0, "o", markersize=15, fillstyle="none", color=looks[setting][0])
        axes.set_xticks(list(made))
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set(xlabel="static draft length γ (tokens)", ylabel="speed-up (x)")
    axes.legend()
    return figure


def _shares(compared: Comparison) -> Figure:
    measured, panels = compared.measured, []
    for setting in measured.settings:
        rows = {arm: compared.rows(arm, at(setting)) for arm in (PLAIN, *sorted(measured.choices(setting).values()))}
        kept = {arm: made for arm, made in rows.items() if len(made) and not made["rounds"].isna().any()}
        panels.append((setting, {arm_name(arm): _parts(made) for arm, made in kept.items()}))
    return stacked(panels, {part: PHASE_COLOURS[part] for part in SHARES}, "share of wall-clock time (%)")


def _parts(decodes: pd.DataFrame) -> dict[str, float]:
    return {phase: 100 * float(decodes[f"seconds_{phase}"].sum() / decodes["seconds"].sum()) for phase in SHARES}


def _checks(compared: Comparison) -> list[Check]:
    measured, loop = compared.measured, compared.measured.loop
    made = []
    if not loop.empty:
        repeats = loop.groupby(["arm", "temperature", "prompt"], sort=True)
        items = repeats.agg(
            document=("document", "first"), loop=("loop", "min"), passes=("passes", "min")
        ).reset_index()
        for name, part in items.groupby(items["arm"] == PLAIN):
            over = rate(part["document"], part["loop"] - part["passes"], part["passes"])
            made.append(
                Check(f"loop overhead, {'plain' if name else 'best static chain'}", over, 0.1, SHARE, at_most=True)
            )
    for setting in measured.settings:
        greedy = measured.greedy(setting)
        bars = ((PLAIN, HF_PLAIN, 1.15), (CHAIN, HF_ASSISTED, 1.0 if greedy else 1.1), (PLAIN, HF_FORWARD, 1.0))
        for arm, other, bar in bars:
            ratio = compared.speedup(arm, other, at(setting))
            if ratio["value"] is not None:
                made.append(Check(f"{arm_name(arm)} over {arm_name(other)}, {setting}", ratio, bar))
    return made
