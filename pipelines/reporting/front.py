"""What stands above the fold: a picture of how fast everything decodes, what was decided, and how to use it."""

import json

import numpy as np
from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_PLAIN, PLAIN
from pipelines.measuring.provenance import numerics
from pipelines.measuring.tuning.names import CHOICES
from pipelines.pair_folder import read_pair
from pipelines.promotion.names import VERDICT
from pipelines.promotion.verdict import INCONCLUSIVE, PASSED, REFUSED
from pipelines.reporting.comparison import at, plus_one
from pipelines.reporting.inputs import Inputs, Record, read_record
from pipelines.reporting.names import arm_name
from pipelines.reporting.page import Front
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE, RED, draw
from pipelines.reporting.section import Picture
from pipelines.reporting.text import GAIN, Interval, shown
from predictors.latency.soundness import noise_warning

AUTO, ORACLE, OURS = "auto", "oracle", "ours: "
CUT_SHORT = "The measurement ended early (max_minutes): fewer prompts than planned."
VERDICTS = {
    PASSED: "The gate passes bundle auto",
    REFUSED: "The gate refuses bundle auto",
    INCONCLUSIVE: "On bundle auto the gate's evidence is inconclusive",
}
CODE = """from runtime import ModelPair, load_decoder

bundle = "{folder}/bundles/auto"
pair = ModelPair.load(target="{target}", draft="{draft}", record=bundle)
decoder = load_decoder(bundle, pair)
out = decoder.generate(pair.tokenizer(text)["input_ids"], max_new_tokens=256, temperature=0.0)"""
Bar = tuple[str, Interval, str]  # a name, how many times as fast as plain decoding, a colour


def front(inputs: Inputs, oracle: dict[str, float]) -> Front:
    """``oracle``: by sampling setting, how many times as fast as the best static chain perfect foresight is in replay."""
    measured = inputs.measured
    origin, facts = measured.origin, read_record(inputs.data / "pair" / "pair.json")
    device, profile = origin["device"], inputs.profile
    machine = device["gpus"][0]["name"] if device["gpus"] else device["cpu"]
    warning = None if profile is None else noise_warning(profile)
    code = _code(inputs) if (inputs.data / "bundles" / AUTO).is_dir() else ""
    return Front(
        facts["pair"],
        f"{machine}, {device['cores']} cores, {numerics(origin)}, commit {short(origin['commit'])}, {origin['date']}",
        decision(inputs),
        Picture(
            "front",
            draw(_bars, _panels(inputs, oracle)),
            "Speed-up over plain decoding, with 95 % intervals over documents. The static chain is the one that tuning found "
            "fastest. The oracle knows what will be accepted of the draft model's chains: a replayed gain on the measured chain.",
        ),
        code,
        tuple(filter(None, (warning, CUT_SHORT if measured.findings.get("capped") else None))),
    )


def _code(inputs: Inputs) -> str:
    location = read_pair(inputs.data / "pair")
    return CODE.format(folder=inputs.data, target=location.target, draft=location.draft)


def short(commit: str | None) -> str:
    """A commit as people name it."""
    return (commit or "unknown")[:12]


def decision(inputs: Inputs) -> str:
    """What tuning chose at every setting, what it gains on test prompts, and what the gate says of it."""
    said = [
        f"At {setting} serve {arm_name(choice['winner'])}{_gain(choice)}." for setting, choice in tuned(inputs).items()
    ]
    verdict = inputs.data / "trials" / AUTO / inputs.device / VERDICT
    judged = [f"{VERDICTS[read_record(verdict)['verdict']]}."] if verdict.is_file() else []
    return " ".join([*(said or ["Nothing was tuned on this machine."]), *judged])


def tuned(inputs: Inputs) -> dict[str, Record]:
    """What tuning chose, by sampling setting."""
    path = inputs.of("tuning") / CHOICES
    choices: list[Record] = json.loads(path.read_text()) if path.is_file() else []
    return {choice["setting"]: choice for choice in choices}


def _gain(choice: Record) -> str:
    """Over the static chain that was fastest on validation prompts, unless that chain won."""
    over = (choice["score"] or {}).get(choice["static"])
    return "" if over is None else f": {shown(over['gain'], GAIN)} over {arm_name(choice['static'])}"


def _panels(inputs: Inputs, oracle: dict[str, float]) -> list[tuple[str, list[Bar]]]:
    compared, choices, panels = inputs.comparison, tuned(inputs), []
    for setting in inputs.measured.settings:
        choice = choices.get(setting, {})
        static = choice.get("static") or inputs.measured.chosen(CHAIN, setting)
        won = choice.get("winner") == static
        arms = [(PLAIN, GREY), (HF_PLAIN, "#b5b5b5"), (HF_ASSISTED, PURPLE), (static, RED if won else BLUE)]
        bars = [
            (f"{OURS if colour == RED else ''}{arm_name(arm)}", compared.speedup(arm, PLAIN, at(setting)), colour)
            for arm, colour in arms
        ]
        speed, score = bars[-1][1]["value"], (choice.get("score") or {}).get(PLAIN)
        if score is not None and not won:
            bars.append((f"{OURS}{arm_name(choice['winner'])}", plus_one(score["gain"]), RED))
        if setting in oracle and speed is not None:
            bars.append((ORACLE, {"value": oracle[setting] * speed, "low": None, "high": None}, GREEN))
        panels.append((setting, [bar for bar in bars if bar[1]["value"] is not None]))
    return panels


def _bars(panels: list[tuple[str, list[Bar]]]) -> Figure:
    """One panel under the other, so that a phone shows them, too; an interval may reach out of its panel."""
    rows = [len(bars) for _, bars in panels]
    figure = Figure(figsize=(6.2, 0.9 * len(rows) + 0.3 * sum(rows)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (setting, bars) in zip(grid, panels, strict=True):
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
        axes.set(title=setting, xlabel="times plain decoding" if setting == panels[-1][0] else "")
    return figure
