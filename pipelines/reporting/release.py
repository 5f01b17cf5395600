"""Section ``release``: the fastest decoder that tuning found at every sampling setting, and the gate's verdicts on bundles.

The winner by replay and clock is scored on test prompts, over plain decoding and over the static chain that was fastest on
validation prompts. Gains of a verdict are those of `pipelines.evidence`, by jackknife over documents.
"""

import math
from collections.abc import Iterator
from textwrap import fill

from pipelines.evidence.estimate import Estimate
from pipelines.measuring.names import PLAIN
from pipelines.promotion.names import VERDICT
from pipelines.promotion.verdict import lines
from pipelines.reporting.comparison import plus_one
from pipelines.reporting.front import tuned
from pipelines.reporting.inputs import Inputs, Record, read_record
from pipelines.reporting.names import arm_name
from pipelines.reporting.section import Column, Row, Section, Table
from pipelines.reporting.text import GAIN, TIMES, listed, shown

WIDTH = 110
TUNED = (
    *(Column(name) for name in ("sampling", "winner", "candidates", "test prompts")),
    *(Column(name, TIMES) for name in ("over plain", "replay alone, validation", "with the clock, validation")),
    Column("over static chain", GAIN),
    Column("static chain"),
)
JUDGED = (*(Column(name) for name in ("bundle", "verdict", "over")), Column("gain", GAIN), Column("estimator"))


def section(inputs: Inputs) -> Section | None:
    """``None`` if nothing was tuned or tried on this machine."""
    choices = tuned(inputs).values()
    trials = sorted((inputs.data / "trials").glob(f"*/{inputs.device}/{VERDICT}"))
    verdicts = {path.parent.parent.name: read_record(path) for path in trials}
    if not choices and not verdicts:
        return None
    winners = tuple(_tuned(choice) for choice in choices)
    gains = tuple(row for name, record in verdicts.items() for row in _gains(name, record))
    tables = (
        Table(TUNED, winners, "Tuned: the best few by replay on validation prompts, the winner on test prompts"),
        Table(
            JUDGED,
            gains,
            "Gate verdicts: gains over the closest rival, and over the gate's reference by sampling setting",
        ),
    )
    return Section(
        "release",
        "What would be released",
        f"{_fastest(winners)}; {_outcomes(verdicts)}.",
        tuple(table for table in tables if table.rows),
        notes=("This page promotes nothing: `draftwright promote` also compares with the champion of the day.",),
        printed="\n".join(
            fill(line, WIDTH, subsequent_indent="  ") for record in verdicts.values() for line in lines(record)
        ),
    )


def _fastest(winners: tuple[Row, ...]) -> str:
    made = [
        f"{name} at {setting}, {shown(speedup, TIMES)} over plain decoding"
        for setting, name, _, _, speedup, *_ in winners
    ]
    return f"Tuning chose {listed(made)}" if made else "Nothing was tuned"


def _outcomes(verdicts: dict[str, Record]) -> str:
    names: dict[str, list[str]] = {}
    for name, record in verdicts.items():
        names.setdefault(record["verdict"], []).append(name)
    made = [f"{listed(some)} {outcome}" for outcome, some in names.items()]
    return f"by the gate {', '.join(made)}" if made else "the gate judged nothing"


def _tuned(choice: Record) -> Row:
    """The winner at a sampling setting; over the static chain unless it is that chain, and without scores where time ran out."""
    candidates = {one["name"]: one["speedup"] for one in choice["candidates"]}
    winner, score = candidates[choice["winner"]], choice["score"] or {}
    over_plain, over_static = (score.get(name) for name in (PLAIN, choice["static"]))
    return (
        choice["setting"],
        arm_name(choice["winner"]),
        len(candidates),
        max((one["prompts"] for one in score.values()), default=0),
        None if over_plain is None else plus_one(over_plain["gain"]),
        math.exp(winner["predicted"]),
        math.exp(winner["value"]),
        None if over_static is None else over_static["gain"],
        choice["static"] and arm_name(choice["static"]),
    )


def _gains(name: str, record: Record) -> Iterator[Row]:
    evidence = record["evidence"]
    rivals = {rival: Estimate(**one) for rival, one in evidence["gains"].items()}
    if not rivals:
        yield name, record["verdict"], None, None, None
        return
    closest = min(rivals, key=lambda rival: rivals[rival].value)
    known = {arm_name(closest): rivals[closest]}
    reference = arm_name(evidence["reference"])
    known |= {f"{reference}, {setting}": Estimate(**one) for setting, one in evidence["settings"].items()}
    for number, (over, one) in enumerate(known.items()):
        yield name, record["verdict"] if number == 0 else "", over, one.interval(), one.basis
