"""Section ``release``: the fastest decoder that tuning found at every sampling setting, and the gate's verdicts on bundles.

The winner by replay and clock is scored on test prompts, over plain decoding and over the static chain that was fastest on
validation prompts. Gains of a verdict are those of `pipelines.evidence`, by jackknife over documents.
"""

import math
from collections.abc import Iterator, Sequence
from textwrap import fill

from pipelines.evidence.estimate import Estimate
from pipelines.measuring.names import PLAIN
from pipelines.promotion.verdict import lines
from pipelines.reporting.inputs import Inputs, Record
from pipelines.reporting.section import Row, Section, Table
from pipelines.reporting.text import TIMES, arm_name, changed, listed, shown

WIDTH = 110
NOTES = ("This page promotes nothing: `draftwright promote` also compares with the champion of the day.",)


def section(inputs: Inputs) -> Section | None:
    """``None`` if nothing was tuned or tried on this machine."""
    winners, verdicts = [_tuned(choice) for choice in inputs.tuned.values()], inputs.verdicts
    if not winners and not verdicts:
        return None
    gains = [row for name, record in verdicts.items() for row in _gains(name, record)]
    tables = [
        Table(winners, "Tuned: the best few by replay on validation prompts, the winner on test prompts"),
        Table(gains, "Gate verdicts: gains over the closest rival, and over the gate's reference by sampling setting"),
    ]
    said = [line for record in verdicts.values() for line in lines(record)]
    printed = "\n".join(fill(line, WIDTH, subsequent_indent="  ") for line in said)
    finding = f"{_fastest(winners)}; {_outcomes(verdicts)}."
    return Section("release", "What would be released", finding, tables, notes=NOTES, printed=printed)


def _fastest(winners: Sequence[Row]) -> str:
    made = []
    for row in winners:
        gain = f", {shown(row['over plain'], TIMES)} over plain decoding" if row["over plain"] else ""
        made.append(f"{row['winner']} at {row['sampling']}{gain}")
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
    return {
        "sampling": choice["setting"],
        "winner": arm_name(choice["winner"]),
        "candidates": len(candidates),
        "test prompts": max((one["prompts"] for one in score.values()), default=0),
        "over plain": None if over_plain is None else changed(over_plain["gain"], lambda gain: 1 + gain),
        "replay alone, validation": math.exp(winner["predicted"]),
        "with the clock, validation": math.exp(winner["value"]),
        "over static chain": None if over_static is None else over_static["gain"],
        "static chain": choice["static"] and arm_name(choice["static"]),
    }


def _gains(name: str, record: Record) -> Iterator[Row]:
    evidence = record["evidence"]
    rivals = {rival: Estimate(**one) for rival, one in evidence["gains"].items()}
    if not rivals:
        yield {"bundle": name, "verdict": record["verdict"], "over": None, "gain": None, "estimator": None}
        return
    closest = min(rivals, key=lambda rival: rivals[rival].value)
    known = {arm_name(closest): rivals[closest]}
    reference = arm_name(evidence["reference"])
    known |= {f"{reference}, {setting}": Estimate(**one) for setting, one in evidence["settings"].items()}
    for number, (over, one) in enumerate(known.items()):
        judged = {"bundle": name, "verdict": "" if number else record["verdict"], "over": over}
        yield {**judged, "gain": one.interval(), "estimator": one.basis}
