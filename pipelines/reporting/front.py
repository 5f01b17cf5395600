"""What stands above the fold: a picture of how fast everything decodes, what was decided, and how to use it."""

from pipelines.evidence.estimate import Estimate
from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_PLAIN, PLAIN
from pipelines.measuring.provenance import commit_of, numerics
from pipelines.outputs import read_json
from pipelines.pair_folder import read_pair
from pipelines.promotion.verdict import INCONCLUSIVE, PASSED, REFUSED
from pipelines.reporting.comparison import By
from pipelines.reporting.inputs import Inputs, Record
from pipelines.reporting.plots import picture, whiskers
from pipelines.reporting.section import SPEEDUP, Section, Table
from pipelines.reporting.text import GAIN, TIMES, Interval, alone, arm_name, changed, shown
from predictors.latency.soundness import noise_warning

AUTO, OURS = "auto", "ours: "
CUT_SHORT = "The measurement ended early (max_minutes): fewer prompts than planned."
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
CODE = """from runtime import ModelPair, load_decoder

bundle = "{folder}/bundles/auto"
pair = ModelPair.load(target="{target}", draft="{draft}", record=bundle)
decoder = load_decoder(bundle, pair)
out = decoder.generate(pair.tokenizer(text)["input_ids"], max_new_tokens=256, temperature=0.0)"""


def front(inputs: Inputs, oracle: dict[str, float]) -> Section:
    """The pair, its machine and what was decided; ``oracle``: how many times as fast as the best static chain perfect foresight
    is in replay, by sampling setting."""
    origin, profile = inputs.measured.origin, inputs.profile
    device = origin["device"]
    machine = device["gpus"][0]["name"] if device["gpus"] else device["cpu"]
    warning = None if profile is None else noise_warning(profile)
    speeds = [_speeds(inputs, setting, oracle.get(setting)) for setting in inputs.measured.settings]
    return Section(
        read_json(inputs.data / "pair" / "pair.json")["pair"],
        f"{machine}, {device['cores']} cores, {numerics(origin)}, commit {commit_of(origin)}, {origin['date']}",
        decision(inputs),
        pictures=[picture("front", CAPTION, whiskers, speeds, [SPEEDUP], "times plain decoding", 1.0, across=1)],
        notes=[*filter(None, (warning, CUT_SHORT if inputs.measured.findings.get("capped") else None))],
        printed=_code(inputs) if (inputs.data / "bundles" / AUTO).is_dir() else "",
    )


def _code(inputs: Inputs) -> str:
    location = read_pair(inputs.data / "pair")
    code = CODE.format(folder=inputs.data, target=location.target, draft=location.draft)
    return code if location.draft else code.replace(', draft="None"', "")


def decision(inputs: Inputs) -> str:
    """What tuning chose at every setting, what it gains on test prompts, and what the gate says of it."""
    gate = inputs.verdicts.get(AUTO, {})
    evidence = gate.get("evidence", {})
    said = [
        f"At {setting} serve {arm_name(choice['winner'])}{_gain(choice, evidence)}."
        for setting, choice in inputs.tuned.items()
    ]
    judged = [f"{VERDICTS[gate['verdict']]}."] if gate else []
    return " ".join([*(said or ["Nothing was tuned on this machine."]), *judged])


def _gain(choice: Record, evidence: Record) -> str:
    """Over the static chain that was fastest on validation prompts, unless that chain won; over the gate's reference, where its
    trial timed more prompts than tuning."""
    over, rival = (choice["score"] or {}).get(choice["static"]), choice["static"]
    if over is None:
        return ""
    gain, tried = over["gain"], evidence.get("settings", {}).get(choice["setting"])
    if tried is not None and tried["prompts"] > over["prompts"]:
        gain, rival = Estimate(**tried).interval(), evidence["reference"]
    return f": {shown(gain, GAIN)} over {arm_name(rival)}"


def _speeds(inputs: Inputs, setting: str, oracle: float | None) -> Table:
    """Plain decoding, Hugging Face's, the static chain, what tuning chose (marked) and the oracle, each with its speed-up."""
    choice = inputs.tuned.get(setting, {})
    static = choice.get("static") or inputs.measured.choices(setting).get(CHAIN, PLAIN)
    ours, score = choice.get("winner", ""), (choice.get("score") or {}).get(PLAIN)
    made: dict[str, Interval] = {
        arm_name(arm): inputs.comparison.speedup(arm, PLAIN, By(setting))
        for arm in (PLAIN, HF_PLAIN, HF_ASSISTED, static)
    }
    speed = made[arm_name(static)]["value"]
    if score is not None and ours != static:
        made[arm_name(ours)] = changed(score["gain"], lambda gain: 1 + gain)
    if oracle is not None and speed is not None:
        made["oracle"] = alone(oracle * speed)
    known = {arm: one for arm, one in made.items() if one["value"] is not None}
    names = {arm: f"{OURS * (arm == arm_name(ours))}{arm}, {shown(one['value'], TIMES)}" for arm, one in known.items()}
    marked = {names.get(arm_name(ours))}
    return Table([{"": name, SPEEDUP: known[arm]} for arm, name in names.items()], setting, marked)
