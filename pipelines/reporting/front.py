"""What stands above the fold: a picture of how fast everything decodes, what was decided, and how to use it."""

import numpy as np
from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_PLAIN, PLAIN
from pipelines.measuring.provenance import commit_of, numerics
from pipelines.pair_folder import read_pair
from pipelines.promotion.verdict import INCONCLUSIVE, PASSED, REFUSED
from pipelines.reporting.comparison import at
from pipelines.reporting.inputs import Inputs, Record, read_record
from pipelines.reporting.names import arm_name
from pipelines.reporting.page import Front
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE, RED, draw
from pipelines.reporting.section import Picture
from pipelines.reporting.text import GAIN, Interval, alone, changed, shown
from predictors.latency.soundness import noise_warning

AUTO, ORACLE, OURS = "auto", "oracle", "ours: "
CUT_SHORT = "The measurement ended early (max_minutes): fewer prompts than planned."
VERDICTS = {
    PASSED: "The gate passes bundle auto",
    REFUSED: "The gate refuses bundle auto",
    INCONCLUSIVE: "On bundle auto the gate's evidence is inconclusive",
}
CAPTION = (
    "Speed-up over plain decoding, with 95 % intervals over documents. The static chain is the one that tuning found "
    "fastest. The oracle knows what will be accepted of the draft model's chains: a replayed gain on the measured chain."
)
CODE = """from runtime import ModelPair, load_decoder

bundle = "{folder}/bundles/auto"
pair = ModelPair.load(target="{target}", draft="{draft}", record=bundle)
decoder = load_decoder(bundle, pair)
out = decoder.generate(pair.tokenizer(text)["input_ids"], max_new_tokens=256, temperature=0.0)"""
Bar = tuple[str, Interval, str]  # a name, how many times as fast as plain decoding, a colour


def front(inputs: Inputs, oracle: dict[str, float]) -> Front:
    """``oracle``: by sampling setting, how many times as fast as the best static chain perfect foresight is in replay."""
    origin, profile = inputs.measured.origin, inputs.profile
    device = origin["device"]
    machine = device["gpus"][0]["name"] if device["gpus"] else device["cpu"]
    warning = None if profile is None else noise_warning(profile)
    return Front(
        read_record(inputs.data / "pair" / "pair.json")["pair"],
        f"{machine}, {device['cores']} cores, {numerics(origin)}, commit {commit_of(origin)}, {origin['date']}",
        decision(inputs),
        Picture("front", draw(_bars, _panels(inputs, oracle)), CAPTION),
        _code(inputs) if (inputs.data / "bundles" / AUTO).is_dir() else "",
        tuple(filter(None, (warning, CUT_SHORT if inputs.measured.findings.get("capped") else None))),
    )


def _code(inputs: Inputs) -> str:
    location = read_pair(inputs.data / "pair")
    code = CODE.format(folder=inputs.data, target=location.target, draft=location.draft)
    return code if location.draft else code.replace(', draft="None"', "")


def decision(inputs: Inputs) -> str:
    """What tuning chose at every setting, what it gains on test prompts, and what the gate says of it."""
    said = [
        f"At {setting} serve {arm_name(choice['winner'])}{_gain(choice)}." for setting, choice in inputs.tuned.items()
    ]
    judged = [f"{VERDICTS[inputs.verdicts[AUTO]['verdict']]}."] if AUTO in inputs.verdicts else []
    return " ".join([*(said or ["Nothing was tuned on this machine."]), *judged])


def _gain(choice: Record) -> str:
    """Over the static chain that was fastest on validation prompts, unless that chain won."""
    over = (choice["score"] or {}).get(choice["static"])
    return "" if over is None else f": {shown(over['gain'], GAIN)} over {arm_name(choice['static'])}"


def _panels(inputs: Inputs, oracle: dict[str, float]) -> dict[str, list[Bar]]:
    compared, panels = inputs.comparison, {}
    for setting in inputs.measured.settings:
        choice = inputs.tuned.get(setting, {})
        static = choice.get("static") or inputs.measured.choices(setting).get(CHAIN, PLAIN)
        won = choice.get("winner") == static
        arms = {PLAIN: GREY, HF_PLAIN: "#b5b5b5", HF_ASSISTED: PURPLE, static: RED if won else BLUE}
        speeds = {arm: compared.speedup(arm, PLAIN, at(setting)) for arm in arms}
        speed, score = speeds[static]["value"], (choice.get("score") or {}).get(PLAIN)
        bars = [(f"{OURS if arms[arm] == RED else ''}{arm_name(arm)}", speeds[arm], arms[arm]) for arm in arms]
        if score is not None and not won:
            ours = changed(score["gain"], lambda gain: 1 + gain)
            bars.append((f"{OURS}{arm_name(choice['winner'])}", ours, RED))
        if setting in oracle and speed is not None:
            bars.append((ORACLE, alone(oracle[setting] * speed), GREEN))
        panels[setting] = [bar for bar in bars if bar[1]["value"] is not None]
    return panels


def _bars(panels: dict[str, list[Bar]]) -> Figure:
    """One panel under the other, so that a phone shows them, too; an interval may reach out of its panel."""
    rows = [len(bars) for bars in panels.values()]
    figure = Figure(figsize=(6.2, 0.9 * len(rows) + 0.3 * sum(rows)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (setting, bars) in zip(grid, panels.items(), strict=True):
        values = np.array([made["value"] for _, made, _ in bars], float)
        ends = np.array([[made["low"] or made["value"], made["high"] or made["value"]] for _, made, _ in bars], float)
        reach, colours = np.abs(ends - values[:, None]), [colour for *_, colour in bars]
        axes.barh(range(len(bars)), values, color=colours, xerr=reach.T, ecolor="#333333")
        widest = 1.25 * float(values.max())
        for place, (value, (_, high)) in enumerate(zip(values, ends, strict=True)):
            right = min(high, widest)
            axes.annotate(f"{value:.2f}x", (right, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, widest)
        axes.set_title(setting)
    grid[-1].set_xlabel("times plain decoding")
    return figure
