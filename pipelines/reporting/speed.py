"""Section ``speed``: how fast every main arm decodes, what its rounds came to, and where the time goes.

block efficiency = emitted / target passes      rollback rate = rolled back / levels      same text: greedy, as plain decoding's
"""

from collections.abc import Iterable, Iterator

from matplotlib.figure import Figure

from pipelines.applicability import NOT_APPLICABLE
from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_FORWARD, HF_PLAIN, LEARNED, PLAIN, chain_gamma
from pipelines.measuring.provenance import of_target_alone
from pipelines.reporting.comparison import Comparison, at, rate
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import PHASE_COLOURS, band, draw, stacked, styles
from pipelines.reporting.section import EFFICIENCY, OVER_CHAIN, SPEEDUP, Check, Picture, Row, Section, Table
from pipelines.reporting.text import GAIN, SHARE, TIMES, shown
from predictors.rounds import PHASES

COUNTS = ("drafted per round", "rollback rate")
SHARES = (*(phase for phase in PHASES if phase != "wait"), "rest")  # these arms' models work one after the other
NOTE = (
    "Intervals are 95 %, over documents. {prompts} held-out prompts of {documents} documents. Arms were timed interleaved in "
    "one process: chains and plain decoding on all prompts, other arms on some. Two arms are compared on the prompts that both "
    "decoded; every prompt weighs alike, while the gate weighs slices by their share."
)
SWEEP = "Speed-up by static draft length; the ring marks the validation choice."


def section(inputs: Inputs) -> Section:
    """Of the main arms; others have sections of their own."""
    measured, compared = inputs.measured.main, Comparison(inputs.measured.main)
    alone = of_target_alone(measured.origin)
    exact = inputs.measured.exactness
    form = inputs.measured.exact_format
    but = "exactly" if form == "float32" else "but for near-ties"
    exactly = f"; in {form} {sum(exact.values())} of {len(exact)} arms write Hugging Face's greedy text {but}"
    tables = [
        arm_table(compared, setting, measured.arms(setting), setting + (exactly if measured.greedy(setting) else ""))
        for setting in measured.settings
    ]
    said = []
    for setting in () if alone else measured.settings:
        arm = measured.chosen(CHAIN, setting)
        said.append(f"{arm_name(arm)} {shown(compared.speedup(arm, PLAIN, at(setting)), TIMES)} at {setting}")
    best = f"The best static chain, chosen on validation prompts, over plain decoding: {', '.join(said)}."
    count = {"prompts": measured.test["prompt"].nunique(), "documents": measured.test["document"].nunique()}
    return Section(
        "speed",
        "How fast",
        f"Static chains are {NOT_APPLICABLE}." if alone else best,
        [*tables, _slices(compared)],
        [
            *([] if alone else [Picture("sweep", draw(_sweep, compared), SWEEP)]),
            Picture("shares", draw(_shares, compared), "Share of wall-clock time by phase."),
        ],
        [NOTE.format(**count), *measured.findings["notes"]],
        checks=[*_checks(compared)],
    )


def arm_table(compared: Comparison, setting: str, arms: Iterable[str], caption: str) -> Table:
    """Speeds and counts of arms at a sampling setting; those that validation prompts chose are marked."""
    by, chosen = at(setting), compared.measured.choices(setting)
    rows: list[Row] = []
    for arm in arms:
        decodes = compared.rows(arm, by)
        speeds: Row = {
            "arm": arm_name(arm),
            "prompts": decodes.index.get_level_values("prompt").nunique(),
            "tokens/s": compared.pace(arm, by)["value"],
            SPEEDUP: compared.speedup(arm, PLAIN, by),
            OVER_CHAIN: None if arm == chosen.get(CHAIN) else compared.gain(arm, CHAIN, by),
        }
        counted = not decodes["rounds"].isna().any() and decodes["drafted"].sum()
        efficiency = compared.rate(arm, "emitted", "rounds", by) if counted else None
        counts = compared.counts(arm, COUNTS, by) if counted else dict.fromkeys(COUNTS)
        equal = decodes["equals_plain"].dropna()
        same = f"{int(equal.sum())}/{len(equal)}" if len(equal) else None
        rows.append({**speeds, EFFICIENCY: efficiency, **counts, "same text": same})
    return Table(rows, caption, frozenset(map(arm_name, chosen.values())))


def _slices(compared: Comparison) -> Table:
    measured = compared.measured
    choices = {family for setting in measured.settings for family in measured.choices(setting)} - {CHAIN}
    learned = [arm for arm, family in measured.families.items() if family == LEARNED]
    rows = [
        {"arm": arm_name(arm)} | {name: compared.gain(arm, CHAIN, at(slice_=name)) for name in measured.slices}
        for arm in [*sorted(choices), *learned]
    ]
    return Table(rows, "Gain over the best static chain by slice, all sampling settings", unit=GAIN)


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
    measured, panels = compared.measured, {}
    for setting in measured.settings:
        rows = {arm: compared.rows(arm, at(setting)) for arm in (PLAIN, *sorted(measured.choices(setting).values()))}
        kept = {arm: made for arm, made in rows.items() if len(made) and not made["rounds"].isna().any()}
        panels[setting] = {
            arm_name(arm): {part: 100 * float(made[f"seconds_{part}"].sum() / made["seconds"].sum()) for part in SHARES}
            for arm, made in kept.items()
        }
    return stacked(panels, {part: PHASE_COLOURS[part] for part in SHARES}, "share of wall-clock time (%)")


def _checks(compared: Comparison) -> Iterator[Check]:
    measured, loop = compared.measured, compared.measured.loop
    if not loop.empty:
        items = loop.groupby(["arm", "temperature", "prompt"], sort=True).agg(
            document=("document", "first"), loop=("loop", "min"), passes=("passes", "min")
        )
        for plain, part in items.groupby(items.index.get_level_values("arm") == PLAIN):
            over = rate(part["document"], part["loop"] - part["passes"], part["passes"])
            name = f"loop overhead, {'plain' if plain else 'best static chain'}"
            yield Check(name, over, 0.1, SHARE, at_most=True)
    for setting in measured.settings:
        assisted = 1.0 if measured.greedy(setting) else 1.1
        for arm, other, bar in ((PLAIN, HF_PLAIN, 1.15), (CHAIN, HF_ASSISTED, assisted), (PLAIN, HF_FORWARD, 1.0)):
            ratio = compared.speedup(arm, other, at(setting))
            if ratio["value"] is not None:
                yield Check(f"{arm_name(arm)} over {arm_name(other)}, {setting}", ratio, bar)
