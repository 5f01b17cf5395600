"""Replayed policies on the clock: whether replay would have chosen well.

error     replayed over measured speed-up over plain decoding, less one, on the prompts that both decoded
regret    measured speed of the policy that replay would have chosen over that of the fastest, less one
"""

from dataclasses import replace

import pandas as pd

from pipelines.measuring.names import PLAIN, on_virtual_clock
from pipelines.reporting.comparison import Comparison, at
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import draw
from pipelines.reporting.prediction import APART, MOST_APART, agreement
from pipelines.reporting.section import Cell, Picture, Row, Table

KNOWN = ("median error", "largest error", "replay's choice", "fastest", "regret")  # unless replay is far off the clock
ENDS = ("value", "low", "high")
CAPTION = "Every policy that was timed, on the prompts that both decoded; the band is ±10 %."


def against_clock(texts: Comparison, clock: Measured) -> tuple[list[Table], list[Picture], list[str]]:
    """A table, a picture and notes; none where nothing that was replayed was timed."""
    rows: list[Row] = []
    agreeing, notes = [], ["Regret: what replay's choice loses on the clock to the fastest policy there."]
    for setting in texts.measured.settings:
        timed, speeds = _on_clock(texts, clock, setting)
        if speeds.empty:
            continue
        errors = (speeds["value"] / speeds["measured"] - 1).abs()
        facts: dict[str, Cell] = {
            "sampling": setting,
            "prompts": timed.measured.test["prompt"].nunique(),
            "policies": len(speeds),
        }
        if errors.median() > MOST_APART:
            rows.append(facts | dict.fromkeys(KNOWN))
            notes += [] if APART in notes else [APART]
            continue
        choice, fastest = (str(speeds["arm"].iloc[int(speeds[name].argmax())]) for name in ("value", "measured"))
        names, regret = (arm_name(choice), arm_name(fastest)), timed.gain(choice, fastest, at(setting))
        known = (float(errors.median()), float(errors.max()), *names, regret)
        rows.append(facts | dict(zip(KNOWN, known, strict=True)))
        agreeing.append(speeds)
    pictures = []
    if agreeing:
        figure = draw(agreement, pd.concat(agreeing), "speed-up over plain decoding", "replayed")
        pictures.append(Picture("replay_clock", figure, CAPTION))
    return [Table(rows, "Replayed against measured speed-ups")], pictures, notes if rows else []


def _on_clock(texts: Comparison, clock: Measured, setting: str) -> tuple[Comparison, pd.DataFrame]:
    """Measured decodes of what was replayed; of every policy whose times are the wall's both speed-ups over plain decoding."""
    both = ["setting", "prompt", "arm"]
    replayed = texts.measured.test[[*both, "tokens", "seconds"]]
    rows = clock.test[clock.test["setting"] == setting].merge(replayed[both], on=both)
    made = rows.drop(columns=["tokens", "seconds"]).merge(replayed, on=both, validate="many_to_one")
    timed, again = (Comparison(replace(texts.measured, decodes=table)) for table in (rows, made))
    arms = [arm for arm in timed.measured.families if arm != PLAIN and not on_virtual_clock(arm)]
    speeds = {arm: timed.speedup(arm, PLAIN, at(setting))["value"] for arm in arms}
    known = [
        {"setting": setting, "arm": arm, "name": "", "measured": speed, **again.speedup(arm, PLAIN, at(setting))}
        for arm, speed in speeds.items()
        if speed is not None
    ]
    return timed, pd.DataFrame(known).astype(dict.fromkeys(ENDS, float) if known else {})
