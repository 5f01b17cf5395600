"""Section ``replay``: what choosing is worth on recorded texts, from plain decoding over the best static chain to the oracle.

    best rule    the rule (confidence, unlearned or learned) of most tokens per second on validation texts; so is the best static
                 chain chosen, and the rival of every family of simple rules
    gap closed   (best rule - best static) / (oracle - best static), in tokens per second

Test texts. Slice `edit` has a row of its own and is in nothing else: neither in what all texts say nor in what is chosen.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, CONFIDENCE, LOOKUP, PLAIN, PROVENANCE, RULE, TAKEOVER, VALIDATION
from pipelines.measuring.replay.names import BRANCHES, BRANCHES_WALL, ORACLE, REPLAYED, replayed_at
from pipelines.reporting.comparison import Comparison, at, share_between
from pipelines.reporting.inputs import Inputs, read_record
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, draw, whiskers
from pipelines.reporting.replay_clock import against_clock
from pipelines.reporting.section import Picture, Row, Section, Table
from pipelines.reporting.text import GAIN, SHARE, UNDEFINED, listed, shown, surely_above
from predictors.schema import EDIT

BEST = "best rule"
RIVALS = (CONFIDENCE, LOOKUP, TAKEOVER)  # families of simple rules, of each of which validation texts choose one
CHOICES = {BEST: (CONFIDENCE, RULE)} | {family: (family,) for family in (CHAIN, *RIVALS)}
COLOURS = {CHAIN: GREY, CONFIDENCE: GREEN, RULE: BLUE, BRANCHES: RED, BRANCHES_WALL: RED, ORACLE: PURPLE}
COLOURS |= {LOOKUP: ORANGE, TAKEOVER: ORANGE}
STEPS = {"static": CHAIN, "rule": BEST, "oracle": ORACLE}
ROUNDING = 1e-6
NOTES = (
    "Replayed, not run: both models' distributions are recorded at every position along texts of the target. What a verifier "
    "accepts of any draft follows exactly; seconds come from the latency profile. The oracle knows what will be accepted of "
    "the draft model's chains; a rule that looks tokens up may pass it.",
    "Static chain and rule were chosen on validation texts. Rows c: the same texts as if a target pass took so many "
    "draft steps. Slice edit, a passage and the start of its revised copy, is in no other row.",
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where nothing was replayed."""
    folder = inputs.of("replay")
    if not (folder / PROVENANCE).is_file():
        return None
    texts, edits = _read(folder / REPLAYED)
    ratios = read_record(folder / PROVENANCE).get("cost_ratios", [])
    elsewhere = {f"c={ratio:g}": _read(folder / replayed_at(ratio))[0] for ratio in ratios}
    settings = texts.measured.settings
    rows = [row for setting in settings for row in _ladder(setting, texts, edits, elsewhere)]
    said = listed([f"{shown(texts.gain(BEST, CHAIN, at(setting)), GAIN)} at {setting}" for setting in settings])
    room = listed([shown(texts.gain(ORACLE, CHAIN, at(setting))["value"], SHARE) for setting in settings])
    picture = Picture("replay", draw(_gains, texts), "Gain over the best static chain, the fastest on top.")
    tables, pictures, notes = against_clock(texts, inputs.measured)
    return Section(
        "replay",
        "What choosing well is worth",
        f"Over the best static chain the best rule gains, replayed, {said}; the oracle gains {room}.",
        [Table(rows, "Replayed, with the number of texts"), *tables],
        [picture, *pictures],
        [*NOTES, *notes],
    )


def oracle(inputs: Inputs) -> dict[str, float]:
    """By sampling setting, how many times as fast as the best static chain the oracle is in replay."""
    path = inputs.of("replay") / REPLAYED
    if not path.is_file():
        return {}
    texts, _ = _read(path)
    made = {setting: texts.speedup(ORACLE, CHAIN, at(setting))["value"] for setting in texts.measured.settings}
    return {setting: value for setting, value in made.items() if value is not None}


def _read(path: Path) -> tuple[Comparison, Comparison]:
    """Replayed decodes with the columns of measured ones: of all slices but `edit`, and of that."""
    rows = pd.read_parquet(path).rename(columns={"drafter": "arm"}).assign(repeat=0)
    edits = rows["slice"] == EDIT
    texts = Measured(rows[~edits], pd.DataFrame(), {"choices": [*_fastest(rows[~edits])]}, {})
    return Comparison(texts), Comparison(replace(texts, decodes=rows[edits]))


def _fastest(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The arms of most tokens per second on validation texts, by sampling setting."""
    rows = rows[rows["split"] == VALIDATION]
    for family, members in CHOICES.items():
        own = rows[rows["family"].isin(members)]
        sums = own.groupby(["setting", "arm"], sort=False)[["tokens", "seconds"]].sum()
        for setting, rates in (sums["tokens"] / sums["seconds"]).groupby("setting"):
            yield {"setting": setting, "family": family, "arm": str(rates.droplevel(0).idxmax())}


def _ladder(setting: str, texts: Comparison, edits: Comparison, elsewhere: dict[str, Comparison]) -> Iterator[Row]:
    """Over all texts, in each slice, of edits, and over all texts at other cost ratios."""
    slices = sorted(texts.rows(PLAIN, at(setting))["slice"].unique())
    parts = {"all": texts, **dict.fromkeys(slices, texts)}
    parts |= {EDIT: edits} if setting in edits.measured.settings else {}
    for name, compared in (parts | elsewhere).items():
        whole = name not in (*slices, EDIT)
        by = at(setting, slice_=None if whole else name)
        static, best, perfect = (compared.rows(arm, by) for arm in STEPS.values())
        _require_oracle_above(f"{setting}, {name}", static, perfect)
        choices = [arm_name(compared.measured.chosen(family, setting)) if whole else "" for family in (CHAIN, BEST)]
        gains = {step: compared.gain(STEPS[step], CHAIN, by) for step in ("rule", "oracle")}
        rates = [part[column] for part in (best, static, perfect) for column in ("tokens", "seconds")]
        divided = surely_above(gains["oracle"], ROUNDING)
        yield {
            "texts": f"{setting}, {name} ({len(static)})",
            **dict(zip(("static chain", "best rule"), choices, strict=True)),
            **{f"{step} over plain": compared.speedup(arm, PLAIN, by)["value"] for step, arm in STEPS.items()},
            **{f"{step} over static": gain for step, gain in gains.items()},
            "gap closed": share_between(static["document"], *rates) if divided else dict(UNDEFINED),
        }


def _require_oracle_above(where: str, base: pd.DataFrame, perfect: pd.DataFrame) -> None:
    """An error below the static chain: by construction (`predictors.replay.oracle`) no chain takes less time on any text, at
    whatever prices, so the rows were not replayed together."""
    below, above = (float(rows["tokens"].sum() / rows["seconds"].sum()) for rows in (base, perfect))
    if above < below * (1 - ROUNDING):
        raise ValueError(
            f"{where}: replay gives the oracle {above:.4g} tokens/s, below the static chain's {below:.4g} "
            f"({base['arm'].iloc[0]}), which cannot be. Measure the profile again and replay by it: dvc repro -sf latency@PAIR, "
            "then dvc repro replay@PAIR."
        )


def _gains(texts: Comparison) -> Figure:
    measured, panels = texts.measured, {}
    for setting in measured.settings:
        kept = {*(arm for arm, family in measured.families.items() if family in COLOURS.keys() - RIVALS)}
        kept |= {arm for family, arm in measured.choices(setting).items() if family in RIVALS}
        gains = {arm: texts.gain(arm, CHAIN, at(setting)) for arm in measured.arms(setting) if arm in kept}
        order = sorted(gains, key=lambda arm: -(gains[arm]["value"] or 0.0))
        panels[setting] = {arm_name(arm): (gains[arm],) for arm in order}
    colours = {arm_name(arm): COLOURS[family] for arm, family in measured.families.items() if family in COLOURS}
    return whiskers(panels, "gain over best static, replayed", line=0, percent=True, colours=colours)
