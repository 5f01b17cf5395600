"""What stands above the fold: a picture of how fast everything decodes, what was decided, and how to use it."""

import json
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_PLAIN, PLAIN, chain_gamma
from pipelines.measuring.provenance import numerics
from pipelines.measuring.tuning.names import CHOICES
from pipelines.pair_folder import read_pair
from pipelines.promotion.names import VERDICT
from pipelines.promotion.verdict import INCONCLUSIVE, PASSED, REFUSED
from pipelines.reporting.comparison import at
from pipelines.reporting.inputs import Inputs, read_record
from pipelines.reporting.names import arm_name
from pipelines.reporting.page import Front
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE, RED, draw
from pipelines.reporting.section import Picture
from pipelines.reporting.text import GAIN, Interval, known, shown
from predictors.latency.soundness import noise_warning

AUTO, ORACLE = "auto", "oracle"
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
            "Speed-up over plain decoding, with 95 % intervals over documents. "
            "The oracle is replayed: it knows what will be accepted.",
        ),
        code,
        () if warning is None else (warning,),
    )


def _code(inputs: Inputs) -> str:
    location = read_pair(inputs.data / "pair")
    return CODE.format(folder=inputs.data, target=location.target, draft=location.draft)


def short(commit: str | None) -> str:
    """A commit as people name it."""
    return (commit or "unknown")[:12]


def decision(inputs: Inputs) -> str:
    """What tuning chose at every setting, what it gains, and what the gate says of it."""
    made = winners(inputs)
    said = [
        f"At {setting} serve {arm_name(winner)}{_gain(inputs, winner, setting)}." for setting, winner in made.items()
    ]
    verdict = inputs.data / "trials" / AUTO / inputs.device / VERDICT
    judged = [f"{VERDICTS[read_record(verdict)['verdict']]}."] if verdict.is_file() else []
    return " ".join([*(said or ["Nothing was tuned on this machine."]), *judged])


def winners(inputs: Inputs) -> dict[str, str]:
    """What tuning chose, by sampling setting."""
    path = inputs.of("tuning") / CHOICES
    choices: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    return {choice["setting"]: choice["winner"] for choice in choices}


def _gain(inputs: Inputs, arm: str, setting: str) -> str:
    gain = inputs.comparison.gain(arm, CHAIN, at(setting))
    return f": {shown(gain, GAIN)} over the best static chain" if known(gain) and chain_gamma(arm) is None else ""


def _panels(inputs: Inputs, oracle: dict[str, float]) -> list[tuple[str, list[Bar]]]:
    compared, chosen, panels = inputs.comparison, winners(inputs), []
    for setting in inputs.measured.settings:
        arms = [(PLAIN, GREY), (HF_PLAIN, "#b5b5b5"), (HF_ASSISTED, PURPLE), (CHAIN, BLUE), (chosen.get(setting), RED)]
        bars = [
            (
                f"ours: {arm_name(arm)}" if colour == RED else arm_name(arm),
                compared.speedup(arm, PLAIN, at(setting)),
                colour,
            )
            for arm, colour in arms
            if arm is not None
        ]
        static = compared.speedup(CHAIN, PLAIN, at(setting))["value"]
        if setting in oracle and static is not None:
            bars.append((ORACLE, {"value": oracle[setting] * static, "low": None, "high": None}, GREEN))
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
