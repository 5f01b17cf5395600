"""Section ``self_drafting``: what methods without a draft model bring, against a draft model and prompt lookup.

DE = 1 + accepted / rounds = HR · AL + 1 − HR    tokens per pass        HR = share of passes with candidates, AL = tokens of those
upkeep                                           seconds spent on candidates, guesses and pool / seconds after the prefill
"""

from collections.abc import Iterator
from functools import partial

from pipelines.measuring.names import CALIBRATED, CHAIN, GIVEN, HF_LOOKUP, HF_PLAIN
from pipelines.report.comparison import RATES, RIVALS, By, TimedArms, places
from pipelines.report.inputs import Inputs, Record
from pipelines.report.plots import picture, whiskers
from pipelines.report.section import SPEEDUP, Cell, Check, Section, column, grid
from pipelines.report.text import SHARE, TIMES, Interval, arm_name, highest, listed, shown

OWN = (CALIBRATED, GIVEN)
UPKEEP, MOST_UPKEEP = "upkeep", 0.1
COUNTS = ("tokens per pass", "passes with candidates", "guesses and candidates per pass", UPKEEP)
NOTE = (
    "The target drafts for itself. Besides the newest token every pass runs over guesses, which grow by what the pass predicts "
    "after them, and over candidates from earlier guesses, which it verifies. The output is exact, whatever the guesses. "
    "Tokens per pass divided by the speed-up: what a pass costs in passes of plain decoding. Upkeep: time spent on candidates, "
    "guesses and pool."
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where no method without a draft model was timed."""
    measured, tables = inputs.measured, []
    own = {setting: own_arms(measured, setting) for setting in measured.settings}
    if not any(own.values()):
        return None
    exported = {key: [arm for arm in arms if measured.families[arm] == CALIBRATED] for key, arms in own.items()}
    for setting, arms in own.items():
        timed = measured.timed((CHAIN, *arms, HF_LOOKUP, HF_PLAIN), By(setting))
        columns = measured.metrics(*RIVALS) | measured.metrics(*COUNTS, of=arms)
        tables.append(grid("arm", places(timed, By(setting)), columns, setting))
    named = {arm_name(arm) for arms in exported.values() for arm in arms}
    speeds = [made for table in tables if (made := column([table.only(named)], SPEEDUP))]
    fastest = listed([highest(made, TIMES) for made in speeds])
    chains = column([table.only({arm_name(CHAIN)}) for table in tables], SPEEDUP)
    reached = listed([shown(speed["value"], TIMES) for speed in chains.values()])
    drafted = f"; the best static chain reaches {reached}" if chains else ""

    def of_slice(name: str, arm: str, setting: str) -> Cell:
        return measured.metric(SPEEDUP, arm, By(setting, slice=name))

    rows = {f"{arm_name(arm)} at {key}": (arm, key) for key, arms in exported.items() for arm in (*arms, HF_LOOKUP)}
    by_slice = {name: partial(of_slice, name) for name in measured.slices}
    finding = f"Fastest exported method without a draft model, over plain decoding: {fastest}{drafted}."
    pictures = [picture("self_drafting", "Speed-up over plain decoding.", whiskers, tables, [SPEEDUP], SPEEDUP, 1.0)]
    tables = [*tables, grid("arm", rows, by_slice, "Speed-up over plain decoding by slice", unit=TIMES)]
    notes = [NOTE, *_notes(lookup_gains(measured), inputs.fitted("guess"))]
    checks = [
        Check(f"{UPKEEP} of {arm}, {key}", measured.rate(arm, *RATES[UPKEEP], By(key)), MOST_UPKEEP, SHARE, True)
        for key, arms in exported.items()
        for arm in arms
    ]
    return Section("self_drafting", "Without a draft model", finding, tables, pictures, notes, checks=checks)


def own_arms(compared: TimedArms, setting: str) -> list[str]:
    """Methods without a draft model, exported ones first."""
    families = compared.families
    own = (arm for arm in compared.arms(setting) if families[arm] in OWN)
    return sorted(own, key=lambda arm: (OWN.index(families[arm]), arm))


def lookup_gains(compared: TimedArms) -> dict[str, Interval]:
    """Return how many times as fast Hugging Face's prompt lookup is as its own generate, by sampling setting."""
    made = {setting: compared.speedup(HF_LOOKUP, HF_PLAIN, By(setting)) for setting in compared.settings}
    return {setting: ratio for setting, ratio in made.items() if ratio["value"] is not None}


def _notes(lookup: dict[str, Interval], fitted: dict[str, Record]) -> Iterator[str]:
    if lookup:
        told = [f"{shown(ratio, TIMES)} at {setting}" for setting, ratio in lookup.items()]
        yield f"Hugging Face's prompt lookup over its own generate: {listed(told)}."
    chosen = [
        f"{record['method']} ({', '.join(f'{key} {value}' for key, value in record['chosen'].items() if key != 'method')})"
        for record in fitted.values()
    ]
    if chosen:
        ways = len({str(row["way"]) for record in fitted.values() for row in record["rows"]})
        yield f"Chosen by the latency profile among {ways} settings on validation prompts: {listed(chosen)}."
