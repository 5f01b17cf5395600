"""What was decided: above the fold, and in section ``release``: the fastest decoder that tuning found at every sampling setting,
and the gate's verdicts on bundles.

Tuning chose on validation prompts; a trial scores its choice on test prompts. Gains are tokens from replay times seconds from the
clock (`pipelines.measuring.gain`), by jackknife over documents.
"""

from collections.abc import Iterator
from textwrap import fill

from pipelines.gate.verdict import INCONCLUSIVE, PASSED, REFUSED, lines
from pipelines.measuring.gain import Estimate
from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_PLAIN, PLAIN
from pipelines.measuring.provenance import commit_of, numerics
from pipelines.outputs import read_json
from pipelines.places import read_pair
from pipelines.report.comparison import By
from pipelines.report.inputs import Inputs, Record
from pipelines.report.plots import picture, whiskers
from pipelines.report.section import SPEEDUP, Row, Section, Table
from pipelines.report.text import GAIN, TIMES, Interval, alone, arm_name, changed, listed, shown
from predictors.latency.soundness import noise_warning

AUTO, OURS, WIDTH = "auto", "ours: ", 110
NOTES = ("This page promotes nothing: `draftwright promote` also compares with the champion of the day.",)
VERDICTS = {
    PASSED: "The gate passes bundle auto",
    REFUSED: "The gate refuses bundle auto",
    INCONCLUSIVE: "On bundle auto the gate's evidence is inconclusive",
}
CAPTION = (
    "Speed-up over plain decoding, with 95 % intervals over documents; red: what tuning chose. The static chain is the one that "
    "tuning found fastest. The oracle knows what will be accepted of the draft model's chains: a replayed gain on the measured "
    "chain."
)
WON = "Tuned: the best few by replay, compared on the clock on validation prompts"
JUDGED = "Gate verdicts: gains over the closest rival, and over the gate's reference by sampling setting"
CODE = """from runtime import ModelPair, load_decoder

bundle = "{folder}/auto"
pair = ModelPair.load(target="{target}", draft="{draft}")
decoder = load_decoder(bundle, pair)
out = decoder.generate(pair.tokenizer(text)["input_ids"], max_new_tokens=256, temperature=0.0)"""


def front(inputs: Inputs, oracle: dict[str, float]) -> Section:
    """Above the fold: how fast everything decodes on which machine, what was decided, and how to use it. ``oracle``: how many
    times as fast as the best static chain perfect foresight is in replay, by sampling setting."""
    origin, profile = inputs.measured.origin, inputs.profile
    device = origin["device"]
    machine = device["gpus"][0]["name"] if device["gpus"] else device["cpu"]
    warning = None if profile is None else noise_warning(profile)
    speeds = [_speeds(inputs, setting, oracle.get(setting)) for setting in inputs.measured.settings]
    code = ""
    if (inputs.data / AUTO).is_dir():
        location = read_pair(inputs.data / "pair")
        code = CODE.format(folder=inputs.data, target=location.target, draft=location.draft)
        code = code.replace(', draft="None"', "")
    return Section(
        read_json(inputs.data / "pair" / "pair.json")["pair"],
        f"{machine}, {device['cores']} cores, {numerics(origin)}, commit {commit_of(origin)}, {origin['date']}",
        decision(inputs),
        pictures=[picture("front", CAPTION, whiskers, speeds, [SPEEDUP], "times plain decoding", 1.0, across=1)],
        notes=[*filter(None, [warning]), *untimed_chains(inputs)],
        printed=code,
    )


def untimed_chains(inputs: Inputs) -> Iterator[str]:
    """Say of every setting that its best static chain is not the one that the page compares with, and what makes it so."""
    for setting, choice in inputs.tuned.items():
        static, other = choice["static"], inputs.measured.choices(setting).get(CHAIN)
        if static is not None and other not in (None, static):
            yield (
                f"At {setting} tuning found {arm_name(static)} fastest among static chains, which was not timed on test prompts: "
                f"gains below are over {arm_name(other)}. Have measure.arms time it always, and measure again."
            )


def decision(inputs: Inputs) -> str:
    """Say what tuning chose at every setting, what it gains, and what the gate says of it: gains are over the fastest static
    chain on validation prompts or, where there was a trial, over the gate's reference on test prompts. What is not surely faster
    than plain decoding there (by the gate: at all settings) is not served."""
    gate, said, unpaid = inputs.verdicts.get(AUTO, {}), list[str](), list[str]()
    evidence = gate.get("evidence", {})
    for setting, choice in inputs.tuned.items():
        winner, rival = arm_name(choice["winner"]), choice["static"]
        if choice["winner"] == PLAIN:
            unpaid.append(setting)
            continue
        over, plain = (_gain(choice, name) for name in (rival, PLAIN))
        if (tried := evidence.get("settings", {}).get(setting)) is not None:
            over, rival = Estimate(**tried).interval(), evidence["reference"]
            known = evidence["gains"].get(PLAIN)
            plain = plain if known is None else Estimate(**known).interval()
        if plain is not None and not (plain["low"] or 0.0) > 0:
            said.append(
                f"At {setting} {winner}, tuning's choice, does not surely beat plain decoding: {shown(plain, GAIN)}."
            )
            continue
        gained = "" if over is None else f": {shown(over, GAIN)} over {arm_name(rival)}"
        said.append(f"At {setting} {'serve' if plain or over else 'tuning chose'} {winner}{gained}.")
    said += [f"At {listed(unpaid)} nothing is surely faster than plain decoding."] if unpaid else []
    judged = [f"{VERDICTS[gate['verdict']]}."] if gate else []
    return " ".join([*(said or ["Nothing was tuned on this machine."]), *judged])


def _speeds(inputs: Inputs, setting: str, oracle: float | None) -> Table:
    """Plain decoding, Hugging Face's, the static chain, what tuning chose (marked) and the oracle, each with its speed-up."""
    measured, choice = inputs.measured, inputs.tuned.get(setting, {})
    static = choice.get("static") or measured.choices(setting).get(CHAIN, PLAIN)
    ours, over_plain = choice.get("winner", ""), _gain(choice, PLAIN)
    arms = (PLAIN, HF_PLAIN, HF_ASSISTED, static)
    made: dict[str, Interval] = {arm_name(arm): measured.speedup(arm, PLAIN, By(setting)) for arm in arms}
    speed = made[arm_name(static)]["value"]
    if over_plain is not None and ours != static:
        made[arm_name(ours)] = changed(over_plain, lambda gain: 1 + gain)
    if oracle is not None and speed is not None:
        made["oracle"] = alone(oracle * speed)
    known = {arm: one for arm, one in made.items() if one["value"] is not None}
    labels = {arm: f"{OURS * (arm == arm_name(ours))}{arm}, {shown(one['value'], TIMES)}" for arm, one in known.items()}
    rows: list[Row] = [{"": label, SPEEDUP: known[arm]} for arm, label in labels.items()]
    return Table(rows, setting, {labels.get(arm_name(ours))})


def section(inputs: Inputs) -> Section | None:
    """``None`` if nothing was tuned or tried on this machine."""
    winners, verdicts = [_tuned(choice) for choice in inputs.tuned.values()], inputs.verdicts
    if not winners and not verdicts:
        return None
    made, outcomes = [], {record["verdict"]: list[str]() for record in verdicts.values()}
    for row in winners:
        gain = f", {shown(row['over plain'], TIMES)} over plain decoding" if row["over plain"] else ""
        made.append(f"{row['winner']} at {row['sampling']}{gain}")
    for name, record in verdicts.items():
        outcomes[record["verdict"]].append(name)
    judged = ", ".join(f"{listed(some)} {outcome}" for outcome, some in outcomes.items())
    said = [line for record in verdicts.values() for line in lines(record)]
    chosen = f"Tuning chose {listed(made)}" if made else "Nothing was tuned"
    finding = f"{chosen}; {f'by the gate {judged}' if judged else 'the gate judged nothing'}."
    gains = [row for name, record in verdicts.items() for row in _gains(name, record)]
    printed = "\n".join(fill(line, WIDTH, subsequent_indent="  ") for line in said)
    tables = [Table(winners, WON), Table(gains, JUDGED)]
    return Section("release", "What would be released", finding, tables, notes=NOTES, printed=printed)


def _gain(choice: Record, rival: str | None) -> Interval | None:
    """The gain of tuning's winner over a rival, on validation prompts."""
    found = choice.get("gains", {}).get(rival)
    return None if found is None else found["gain"]


def _tuned(choice: Record) -> Row:
    """The winner at a sampling setting; over the static chain unless it is that chain."""
    over_plain, over_static = (_gain(choice, name) for name in (PLAIN, choice["static"]))
    return {
        "sampling": choice["setting"],
        "winner": arm_name(choice["winner"]),
        "candidates": len(choice["candidates"]),
        "prompts": max((one["prompts"] for one in choice["gains"].values() if one), default=0),
        "over plain": None if over_plain is None else changed(over_plain, lambda gain: 1 + gain),
        "over static chain": over_static,
        "static chain": choice["static"] and arm_name(choice["static"]),
    }


def _gains(bundle: str, record: Record) -> Iterator[Row]:
    evidence = record["evidence"]
    rivals = {rival: Estimate(**one) for rival, one in evidence["gains"].items() if one is not None}
    if not rivals:
        yield {"bundle": bundle, "verdict": record["verdict"], "over": None, "gain": None, "estimator": None}
        return
    closest, reference = min(rivals, key=lambda rival: rivals[rival].value), arm_name(evidence["reference"])
    known = {arm_name(closest): rivals[closest]}
    known |= {f"{reference}, {setting}": Estimate(**one) for setting, one in evidence["settings"].items() if one}
    for number, (over, one) in enumerate(known.items()):
        judged = {"bundle": bundle, "verdict": "" if number else record["verdict"], "over": over}
        yield {**judged, "gain": one.interval(), "estimator": one.basis}
