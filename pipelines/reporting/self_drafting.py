"""Section ``self_drafting``: what methods without a draft model bring, against a draft model and prompt lookup.

DE = 1 + accepted / rounds = HR · AL + 1 − HR    tokens per pass        HR = share of passes with candidates, AL = tokens of those
upkeep                                           seconds spent on candidates, guesses and pool / seconds after the prefill
"""

from collections.abc import Iterator

from matplotlib.figure import Figure

from pipelines.measuring.names import CALIBRATED, CHAIN, GIVEN, HF_LOOKUP, HF_PLAIN, METHODS, PLAIN
from pipelines.reporting.comparison import RATES, By, Comparison, at
from pipelines.reporting.inputs import Inputs, Record
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import draw, whiskers
from pipelines.reporting.section import SPEEDUP, Check, Picture, Row, Section, Table
from pipelines.reporting.text import SHARE, TIMES, Interval, listed, shown

OWN = (CALIBRATED, GIVEN)
BASES = (HF_LOOKUP, *METHODS[1:])
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
Own = dict[str, list[str]]  # arms by sampling setting
Speeds = dict[str, dict[str, Interval]]  # over plain decoding, by sampling setting and arm


def section(inputs: Inputs) -> Section | None:
    """``None`` where no method without a draft model was timed."""
    measured, compared = inputs.measured, inputs.comparison
    own = {setting: own_arms(measured, setting) for setting in measured.settings}
    if not any(own.values()):
        return None
    exported = {key: [arm for arm in arms if measured.families[arm] == CALIBRATED] for key, arms in own.items()}
    speeds = {
        setting: {arm: compared.speedup(arm, PLAIN, at(setting)) for arm in (CHAIN, *arms, HF_LOOKUP, HF_PLAIN)}
        for setting, arms in own.items()
    }
    checks = [
        Check(f"upkeep of {arm}, {key}", compared.rate(arm, *RATES[UPKEEP], at(key)), MOST_UPKEEP, SHARE, at_most=True)
        for key, arms in exported.items()
        for arm in arms
    ]
    return Section(
        "self_drafting",
        "Without a draft model",
        _finding(speeds, exported),
        [
            *(_timed(compared, setting, arms, speeds[setting]) for setting, arms in own.items()),
            _slices(compared, exported),
        ],
        [Picture("self_drafting", draw(_speeds, speeds), "Speed-up over plain decoding.")],
        [NOTE, *_notes(compared, inputs.fitted("guess"))],
        checks=checks,
    )


def own_arms(measured: Measured, setting: str) -> list[str]:
    """Methods without a draft model, exported ones first."""
    families = measured.families
    own = (arm for arm in measured.arms(setting) if families[arm] in OWN)
    return sorted(own, key=lambda arm: (OWN.index(families[arm]), arm))


def passes(compared: Comparison, arm: str, by: By) -> dict[str, float | None]:
    """DE, HR and AL of all passes after the prefills, mean guesses and candidates, and upkeep."""
    more = (compared.rate(arm, "accepted", cost, by)["value"] for cost in ("rounds", "tried"))
    tokens, of_those = (None if value is None else 1 + value for value in more)
    counts = compared.counts(arm, (HR, GUESSES, CANDIDATES, UPKEEP), by)
    return {DE: tokens, HR: counts.pop(HR), AL: of_those, **counts}


def _timed(compared: Comparison, setting: str, own: list[str], speeds: dict[str, Interval]) -> Table:
    by = at(setting)
    rows: list[Row] = []
    for arm in (one for one, speed in speeds.items() if speed["value"] is not None):
        over = {f"over {arm_name(base)}": None if arm == base else compared.speedup(arm, base, by) for base in BASES}
        made = passes(compared, arm, by) if arm in own else dict.fromkeys((*PASSES, UPKEEP))
        fed = (made[GUESSES] or 0.0) + (made[CANDIDATES] or 0.0) if arm in own else None
        counts = {DE: made[DE], HR: made[HR], "guesses and candidates per pass": fed, UPKEEP: made[UPKEEP]}
        rows.append({"arm": arm_name(arm), SPEEDUP: speeds[arm], **over, **counts})
    return Table(rows, setting)


def _slices(compared: Comparison, exported: Own) -> Table:
    rows: list[Row] = [
        {"arm": arm_name(arm), "sampling": setting}
        | {name: compared.speedup(arm, PLAIN, at(setting, slice_=name)) for name in compared.measured.slices}
        for setting, arms in exported.items()
        for arm in (*arms, HF_LOOKUP)
    ]
    return Table(rows, "Speed-up over plain decoding by slice", unit=TIMES)


def _finding(speeds: Speeds, exported: Own) -> str:
    """What is fastest without a draft model, and what the best static chain reaches."""
    said = []
    for setting, arms in exported.items():
        if arms:
            fastest = max(arms, key=lambda arm: speeds[setting][arm]["value"] or 0.0)
            said.append(f"{fastest} {shown(speeds[setting][fastest], TIMES)} at {setting}")
    reached = [made[CHAIN]["value"] for made in speeds.values()]
    chains = [shown(value, TIMES) for value in reached if value is not None]
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
    panels = {setting: {arm_name(arm): (speed,) for arm, speed in made.items()} for setting, made in speeds.items()}
    return whiskers(panels, "speed-up over plain decoding", line=1)
