"""Section ``self_drafting``: what methods without a draft model bring, against a draft model and prompt lookup.

DE = 1 + accepted / rounds = HR · AL + 1 − HR    tokens per pass        HR = share of passes with candidates, AL = tokens of those
upkeep                                           seconds spent on candidates, guesses and pool / seconds after the prefill
"""

from collections.abc import Iterator

from pipelines.measuring.names import CALIBRATED, CHAIN, GIVEN, HF_LOOKUP, HF_PLAIN, PLAIN
from pipelines.reporting.comparison import RATES, RIVALS, By, Comparison
from pipelines.reporting.inputs import Inputs, Record
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.plots import picture, whiskers
from pipelines.reporting.section import SPEEDUP, Check, Metric, Section, Table, column, grid
from pipelines.reporting.text import SHARE, TIMES, Interval, arm_name, highest, listed, shown

OWN = (CALIBRATED, GIVEN)
UPKEEP, MOST_UPKEEP = "upkeep", 0.1
DE, HR, AL, GUESSES, CANDIDATES = PASSES = (
    *("tokens per pass", "passes with candidates", "tokens of those"),
    *("guesses per pass", "candidates per pass"),
)
NOTE = (
    "The target drafts for itself. Besides the newest token every pass runs over guesses, which grow by what the pass predicts "
    "after them, and over candidates from earlier guesses, which it verifies. The output is exact, whatever the guesses. "
    "Tokens per pass divided by the speed-up: what a pass costs in passes of plain decoding. Upkeep: time spent on candidates, "
    "guesses and pool."
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where no method without a draft model was timed."""
    measured, compared = inputs.measured, inputs.comparison
    own = {setting: own_arms(measured, setting) for setting in measured.settings}
    if not any(own.values()):
        return None
    exported = {key: [arm for arm in arms if measured.families[arm] == CALIBRATED] for key, arms in own.items()}
    tables = [_timed(compared, setting, arms) for setting, arms in own.items()]
    checks = [
        Check(f"upkeep of {arm}, {key}", compared.rate(arm, *RATES[UPKEEP], By(key)), MOST_UPKEEP, SHARE, at_most=True)
        for key, arms in exported.items()
        for arm in arms
    ]
    return Section(
        "self_drafting",
        "Without a draft model",
        _finding(tables, {arm_name(arm) for arms in exported.values() for arm in arms}),
        [*tables, _slices(compared, exported)],
        [picture("self_drafting", "Speed-up over plain decoding.", whiskers, tables, [SPEEDUP], SPEEDUP, 1.0)],
        [NOTE, *_notes(lookup_gains(compared), inputs.fitted("guess"))],
        checks=checks,
    )


def own_arms(measured: Measured, setting: str) -> list[str]:
    """Methods without a draft model, exported ones first."""
    families = measured.families
    own = (arm for arm in measured.arms(setting) if families[arm] in OWN)
    return sorted(own, key=lambda arm: (OWN.index(families[arm]), arm))


def _timed(compared: Comparison, setting: str, own: list[str]) -> Table:
    by = By(setting)
    arms = [arm for arm in (CHAIN, *own, HF_LOOKUP, HF_PLAIN) if compared.speedup(arm, PLAIN, by)["value"] is not None]
    columns = compared.metrics(*RIVALS) | compared.metrics(DE, HR, "guesses and candidates per pass", UPKEEP, of=own)
    return grid("arm", compared.places(arms, by), columns, setting)


def _slices(compared: Comparison, exported: dict[str, list[str]]) -> Table:
    places = {
        f"{arm_name(arm)} at {setting}": (arm, setting)
        for setting, arms in exported.items()
        for arm in (*arms, HF_LOOKUP)
    }

    def of_slice(name: str) -> Metric:
        return lambda arm, setting: compared.metric(SPEEDUP, arm, By(setting, slice=name))

    columns = {name: of_slice(name) for name in compared.measured.slices}
    return grid("arm", places, columns, "Speed-up over plain decoding by slice", unit=TIMES)


def _finding(tables: list[Table], exported: set[str]) -> str:
    """What is fastest without a draft model, and what the best static chain reaches."""
    own = [column([table.only(exported)], SPEEDUP) for table in tables]
    fastest = listed([highest(speeds, TIMES) for speeds in own if speeds])
    chains = column([table.only({arm_name(CHAIN)}) for table in tables], SPEEDUP)
    reached = listed([shown(speed["value"], TIMES) for speed in chains.values()])
    drafted = f"; the best static chain reaches {reached}" if chains else ""
    return f"Fastest exported method without a draft model, over plain decoding: {fastest}{drafted}."


def lookup_gains(compared: Comparison) -> dict[str, Interval]:
    """How many times as fast Hugging Face's prompt lookup is as its own generate, by sampling setting."""
    made = {setting: compared.speedup(HF_LOOKUP, HF_PLAIN, By(setting)) for setting in compared.measured.settings}
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
