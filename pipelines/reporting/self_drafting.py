"""Section ``self_drafting``: what methods without a draft model bring, against a draft model and prompt lookup.

DE = 1 + accepted / rounds = HR · AL + 1 − HR    tokens per pass        HR = share of passes with candidates, AL = tokens of those
upkeep                                           seconds spent on candidates, guesses and pool / seconds after the prefill
"""

from collections.abc import Iterator

from matplotlib.figure import Figure

from pipelines.measuring.names import CALIBRATED, CHAIN, GIVEN, HF_LOOKUP, HF_PLAIN, METHODS, PLAIN
from pipelines.reporting.comparison import Comparison, at
from pipelines.reporting.inputs import Inputs, Record
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import BLUE, Marks, draw, whiskers
from pipelines.reporting.section import Cell, Check, Column, Picture, Row, Section, Table
from pipelines.reporting.text import NUMBER, SHARE, TIMES, Interval, listed, shown

OWN = (CALIBRATED, GIVEN)
BASES = (HF_LOOKUP, *METHODS[1:])
UPKEEP, MOST_UPKEEP = ("seconds_draft", "seconds_rounds"), 0.1
COLUMNS = (
    Column("arm"),
    *(Column(name, TIMES) for name in ("speed-up over plain", *(f"over {arm_name(base)}" for base in BASES))),
    *(Column("tokens per pass", NUMBER), Column("passes with candidates", SHARE)),
    *(Column("guesses and candidates per pass", NUMBER), Column("upkeep", SHARE)),
)
NOTE = (
    "The target drafts for itself. Besides the newest token every pass runs over guesses, which grow by what the pass predicts "
    "after them, and over candidates from earlier guesses, which it verifies. The output is exact, whatever the guesses. "
    "Tokens per pass divided by the speed-up: what a pass costs in passes of plain decoding. Upkeep: time spent on candidates, "
    "guesses and pool."
)
Own = dict[str, list[str]]  # arms by sampling setting
Speeds = dict[tuple[str, str], Interval]  # over plain decoding, by sampling setting and arm


def section(inputs: Inputs) -> Section | None:
    """``None`` where no method without a draft model was timed."""
    measured, compared = inputs.measured, inputs.comparison
    own = {setting: own_arms(measured, setting) for setting in measured.settings}
    if not any(own.values()):
        return None
    exported = {key: [arm for arm in arms if measured.families[arm] == CALIBRATED] for key, arms in own.items()}
    speeds = {
        (setting, arm): compared.speedup(arm, PLAIN, at(setting))
        for setting, arms in own.items()
        for arm in (CHAIN, *arms, HF_LOOKUP, HF_PLAIN)
    }
    upkeep = (
        Check(f"upkeep of {arm}, {setting}", compared.rate(arm, *UPKEEP, at(setting)), MOST_UPKEEP, SHARE, at_most=True)
        for setting, arms in exported.items()
        for arm in arms
    )
    return Section(
        "self_drafting",
        "Without a draft model",
        _finding(speeds, exported),
        (*(_timed(compared, setting, arms, speeds) for setting, arms in own.items()), _slices(compared, exported)),
        (Picture("self_drafting", draw(_speeds, speeds), "Speed-up over plain decoding."),),
        (NOTE, *_notes(compared, inputs.fitted("guess"))),
        checks=tuple(upkeep),
    )


def own_arms(measured: Measured, setting: str) -> list[str]:
    """Methods without a draft model, exported ones first."""
    families = measured.families
    own = (arm for arm in measured.arms(setting) if families[arm] in OWN)
    return sorted(own, key=lambda arm: (OWN.index(families[arm]), arm))


def passes(compared: Comparison, arm: str, setting: str) -> dict[str, float | None]:
    """DE, HR and AL of all passes after the prefills, and mean guesses and candidates."""
    pairs = {"HR": ("tried", "rounds"), "guesses": ("guessed", "rounds"), "candidates": ("drafted", "rounds")}
    made = {name: compared.rate(arm, *pair, at(setting))["value"] for name, pair in pairs.items()}
    more = (compared.rate(arm, "accepted", cost, at(setting))["value"] for cost in ("rounds", "tried"))
    return made | {name: None if value is None else 1 + value for name, value in zip(("DE", "AL"), more, strict=True)}


def _timed(compared: Comparison, setting: str, arms: list[str], speeds: Speeds) -> Table:
    rows: list[Row] = []
    for arm in (one for key, one in speeds if key == setting and speeds[key, one]["value"] is not None):
        over = [None if arm == base else compared.speedup(arm, base, at(setting)) for base in BASES]
        counts: list[Cell] = [None] * 4
        if arm in arms:
            made = passes(compared, arm, setting)
            fed = (made["guesses"] or 0.0) + (made["candidates"] or 0.0)
            counts = [made["DE"], made["HR"], fed, compared.rate(arm, *UPKEEP, at(setting))["value"]]
        rows.append((arm_name(arm), speeds[setting, arm], *over, *counts))
    return Table(COLUMNS, tuple(rows), setting)


def _slices(compared: Comparison, exported: Own) -> Table:
    names = sorted(compared.measured.test["slice"].unique())
    rows: list[Row] = [
        (arm_name(arm), setting, *(compared.speedup(arm, PLAIN, at(setting, slice_=name)) for name in names))
        for setting, arms in exported.items()
        for arm in (*arms, HF_LOOKUP)
    ]
    columns = (Column("arm"), Column("sampling"), *(Column(name, TIMES) for name in names))
    return Table(columns, tuple(rows), "Speed-up over plain decoding by slice")


def _finding(speeds: Speeds, exported: Own) -> str:
    """What is fastest without a draft model, and what the best static chain reaches."""
    fastest = {
        key: max(arms, key=lambda arm: speeds[key, arm]["value"] or 0.0) for key, arms in exported.items() if arms
    }
    said = [f"{arm} {shown(speeds[setting, arm], TIMES)} at {setting}" for setting, arm in fastest.items()]
    chains = [shown(speeds[key, CHAIN]["value"], TIMES) for key in exported if speeds[key, CHAIN]["value"] is not None]
    drafted = f"; the best static chain reaches {listed(chains)}" if chains else ""
    return f"Fastest exported method without a draft model, over plain decoding: {listed(said)}{drafted}."


def _notes(compared: Comparison, fitted: dict[str, Record]) -> Iterator[str]:
    lookup = {key: compared.speedup(HF_LOOKUP, HF_PLAIN, at(key)) for key in compared.measured.settings}
    told = [f"{shown(ratio, TIMES)} at {setting}" for setting, ratio in lookup.items() if ratio["value"] is not None]
    if told:
        yield f"Hugging Face's prompt lookup over its own generate: {listed(told)}."
    chosen = [
        f"{record['method']} ({', '.join(f'{key} {value}' for key, value in record['chosen'].items() if key != 'method')})"
        for record in fitted.values()
    ]
    if chosen:
        ways = len({str(row["way"]) for record in fitted.values() for row in record["rows"]})
        yield f"Chosen by the latency profile among {ways} settings on validation prompts: {listed(chosen)}."


def _speeds(speeds: Speeds) -> Figure:
    panels: dict[str, list[Marks]] = {setting: [] for setting, _ in speeds}
    for (setting, arm), speed in speeds.items():
        panels[setting].append((arm_name(arm), [(speed, (BLUE, "o"))]))
    return whiskers(list(panels.items()), "speed-up over plain decoding", line=1)
