"""What was decided, and where it comes from: above the fold, and sections ``release`` and ``origin``.

Tuning chose on validation prompts; a trial scores its choice on test prompts. Gains are tokens from replay times seconds from the
clock (`pipelines.measuring.gain`), by jackknife over documents.
"""

from collections.abc import Iterator, Sequence
from textwrap import fill

from pipelines.gate.verdict import INCONCLUSIVE, PASSED, REFUSED, lines
from pipelines.measuring.gain import Estimate
from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_PLAIN, PLAIN, PROVENANCE
from pipelines.measuring.provenance import commit_of, numerics
from pipelines.outputs import read_json
from pipelines.places import read_pair
from pipelines.report.comparison import SPEEDUP, By
from pipelines.report.inputs import Inputs, Record
from pipelines.report.section import (
    UNDEFINED,
    Interval,
    Picture,
    Section,
    Table,
    Unit,
    arm_name,
    changed,
    frame,
    listed,
    shown,
)
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
JUDGED = "Gate verdicts, with gains over the rival that came closest"
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
        pictures=[Picture("front", CAPTION, speeds, [SPEEDUP], "times plain decoding", 1.0, across=1)],
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
            beaten = f"does not surely beat plain decoding: {shown(plain, Unit.GAIN)}."
            said.append(f"At {setting} {winner}, tuning's choice, {beaten}")
            continue
        gained = "" if over is None else f": {shown(over, Unit.GAIN)} over {arm_name(rival)}"
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
        made["oracle"] = UNDEFINED | {"value": oracle * speed}
    labels = {arm: f"{arm}, {shown(one['value'], Unit.TIMES)}" for arm, one in made.items() if one["value"] is not None}
    labels = {arm: OURS * (arm == arm_name(ours)) + label for arm, label in labels.items()}
    rows = frame({"arm": label, SPEEDUP: made[arm]} for arm, label in labels.items())
    return Table(setting, rows, marked={labels.get(arm_name(ours), "")})


def release(inputs: Inputs) -> Section | None:
    """Make the section on what would be released; ``None`` if nothing was tuned or tried on this machine."""
    choices, verdicts = inputs.tuned, inputs.verdicts
    if not choices and not verdicts:
        return None
    made = listed([f"{arm_name(choice['winner'])} at {setting}" for setting, choice in choices.items()])
    judged = listed([f"{name} {record['verdict']}" for name, record in verdicts.items()])
    finding = f"Tuning chose {made}; the gate: {judged}."
    winners = frame(map(_tuned, choices.values()))
    gains = frame(_judged(name, record) for name, record in verdicts.items())
    said = [fill(line, WIDTH, subsequent_indent="  ") for record in verdicts.values() for line in lines(record)]
    tables = [Table("tuned", winners, WON), Table("verdicts", gains, JUDGED)]
    return Section("release", "What would be released", finding, tables, notes=NOTES, printed="\n".join(said))


def _gain(choice: Record, rival: str | None) -> Interval | None:
    """The gain of tuning's winner over a rival, on validation prompts."""
    found = choice.get("gains", {}).get(rival)
    return None if found is None else found["gain"]


def _tuned(choice: Record) -> Record:
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


def _judged(bundle: str, record: Record) -> Record:
    """The verdict on a bundle, and its gain over the rival that came closest."""
    rivals = {rival: Estimate(**one) for rival, one in record["evidence"]["gains"].items() if one is not None}
    closest = min(rivals, key=lambda rival: rivals[rival].value, default=None)
    found = {"bundle": bundle, "verdict": record["verdict"]}
    if closest is None:
        return found
    return found | {"over": arm_name(closest), "gain": rivals[closest].interval(), "estimator": rivals[closest].basis}


def origin(inputs: Inputs, missing: Sequence[str]) -> Section:
    """Make the section on the provenance of the measurement; ``missing``: names of sections that were left out."""
    found, facts = inputs.measured.origin, read_json(inputs.data / "pair" / "pair.json")
    device, models = found["device"], found["models"]
    gpus = [f"{gpu['name']} ({gpu['memory']}, driver {gpu['driver']})" for gpu in device["gpus"]]
    apart = [
        f"{name} {one['compact']:.1e} of 1 + abs(logit)"
        for name, one in inputs.measured.findings["forward_agreement"].items()
    ]
    rows = {
        "commit": commit_of(found, digits=40),
        "target": facts["gguf"]["target"]["file"] if "gguf" in facts else facts["target"],
        "draft": "a drafter trained for it" if "drafter" in facts else facts.get("draft", "none"),
        "machine": ", ".join([device["cpu"], f"{device['cores']} cores", device["system"], *gpus]),
        "native bfloat16": ", ".join(device["bfloat16_flags"]) or "none",
        "number formats": f"{numerics(found)}, {found['threads']} threads",
        "forwards": ", ".join(f"{name} {model['forward']}" for name, model in models.items()),
        "logits off Hugging Face's": ", ".join(apart),
        "versions": ", ".join(f"{package} {version}" for package, version in found["versions"].items()),
        "parameters, hashes, arms": f"in {PROVENANCE} of the measurement",
        "not measured": listed(missing),
    }
    table = Table("origin", frame({"what": name, "value": value} for name, value in rows.items()), "Of the measurement")
    return Section("origin", "Where these numbers come from", f"Commit {commit_of(found)}, {found['date']}.", [table])
