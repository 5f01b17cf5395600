"""Section ``selection``: what choosing a delayed tree at every root is worth, on exact labels and on the clock.

    exact     Σ E / Σ T over roots of held-out documents: exact expectations, predicted seconds (paper 004, Tables 4 to 7)
    labels    mean emitted tokens of real first rounds less the labels' expectation, paired by root
    prices    predicted / measured seconds of whole rounds of a rule's static tree, less 1

A label is right where that difference may be 0.
"""

import re

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipelines.measuring.names import PROVENANCE
from pipelines.measuring.selection.names import BUNDLE, FIRST_ROUNDS, PRICES, SELECTOR, STATIC_TREE
from pipelines.reporting.comparison import Comparison, rate
from pipelines.reporting.inputs import Inputs, Record, read_record
from pipelines.reporting.measured_folder import with_settings
from pipelines.reporting.plots import BLUE, GREEN, GREY, draw, heat_map, whiskers
from pipelines.reporting.section import Picture, Row, Section, Table
from pipelines.reporting.text import GAIN, SHARE, UNDEFINED, Interval, listed, shown, surely_above
from predictors.config import parse_config
from predictors.latency.actions import Prices
from predictors.rounds import PHASES

WORTH_WINNING, QUARTER = 0.03, 0.25  # a gain of the oracle below which there is nothing to win, and a share of it
EXACT, CLOCK, LEAST = "gain, exact labels", "gain, on the clock", "oracle's, at least"
LOOKS = {"exact labels": (BLUE, "o"), "on the clock": (GREEN, "s"), "oracle, at least": (GREY, "D")}


def section(inputs: Inputs) -> Section | None:
    """``None`` where no selector was checked."""
    folder = inputs.of("selection")
    if not (folder / PROVENANCE).is_file():
        return None
    fitted = {str(record["rule"]): record for record in inputs.fitted("tree").values()}
    priced = read_record(folder / PRICES)
    records = {rule: fitted[rule] for rule in priced}
    exact = {rule: _exact(record["parts"]["all"]) for rule, record in records.items()}
    clock = {rule: inputs.comparison.gain(BUNDLE + rule, STATIC_TREE + rule) for rule in records}
    rows = [_row(inputs.comparison, records, rule, rule, exact[rule]) for rule in records]
    best = max(clock, key=lambda rule: -1.0 if (gain := clock[rule]["value"]) is None else gain)
    sure = frozenset(rule for rule, gain in clock.items() if surely_above(gain))
    right = labels_right(pd.read_parquet(folder / FIRST_ROUNDS))
    errors = price_errors(inputs.measured.rounds, records, priced) or [0.0]
    drift, first = float(np.median(errors)), next(iter(records.values()))
    left = float(np.median([abs((1 + error) / (1 + drift) - 1) for error in errors]))
    capped = read_record(folder / PROVENANCE)["capped"] or inputs.measured.findings["capped"]
    worth, closed, nothing = map(listed, to_win(records))
    notes = (
        "A delayed tree is a trunk of L1 tokens, then K paths of L2 (K.L1.L2). A selector reads both models' states and "
        f"names a tree before its first token is drawn. Exact labels are of {first['roots']} roots of {first['documents']} "
        "held-out documents. The oracle's gain lies between two bounds, scored on another draw and on the same draws; the "
        "share closed is of the lower.",
        f"The oracle would gain 3 % or more with {worth}; the selector closes a quarter of that with {closed}. Even the "
        f"oracle would gain less than 3 % with {nothing}.",
        f"Labels agree with real rounds at {sum(right)} of {len(right)} rules and trees. Prices of steps are off by "
        f"{shown(drift, GAIN)} in the median, which moves no choice, and by {shown(left, SHARE)} beyond that.",
        *(["The time cap ended this measurement early."] if capped else []),
    )
    gains = {"": {rule: (exact[rule][EXACT], clock[rule], exact[rule][LEAST]) for rule in records}}
    figure = draw(whiskers, gains, "gain over the rule's best static tree", 0, True, LOOKS)
    return Section(
        "selection",
        "Which tree to draft, chosen at every root",
        f"Choosing surely gains with {sum(surely_above(made[EXACT]) for made in exact.values())} of {len(rows)} rules on "
        f"exact labels, with {len(sure)} on the clock, where {best} gains most: {shown(clock[best], GAIN)}.",
        [Table([*rows, *_over_traversal(inputs.comparison, records)], marked=sure)],
        [
            Picture("selection", figure, "Gain of choosing over the best static tree of the same rule."),
            Picture("choices", draw(_choices, records), "What is chosen at held-out roots, in percent by slice."),
        ],
        notes,
    )


def _exact(part: Record) -> dict[str, Interval | None]:
    """What exact labels say of a rule's selector, and of the oracle's gain, which lies between two bounds."""
    oracle = {LEAST: part.get("oracle", {}).get("gain"), "at most": part["oracle_same_draws"]["gain"]["value"]}
    return {EXACT: part[SELECTOR]["gain"], **oracle, "share closed": part.get("gap_closed")}


def _row(
    compared: Comparison, records: dict[str, Record], rule: str, other: str, exact: dict[str, Interval | None]
) -> Row:
    """Of a rule's selector and a rule's static tree; exact labels compare those of one rule."""
    deciding = compared.counts(BUNDLE + rule, ["deciding"])["deciding"]
    actions = records[other]["static_actions"].items()
    return {
        "rule": rule if rule == other else f"{rule} over {other}",
        "best static tree": ", ".join(f"{setting}: {action}" for setting, action in actions),
        "its speed-up over plain": compared.speedup(STATIC_TREE + other),
        **exact,
        CLOCK: compared.gain(BUNDLE + rule, STATIC_TREE + other),
        "deciding, % of time": None if deciding is None else 100 * deciding,
    }


def _over_traversal(compared: Comparison, records: dict[str, Record]) -> list[Row]:
    """The selector that promised most on validation roots, over traversal's static tree."""
    others = {rule: float(record["validation_tokens_per_second"]) for rule, record in records.items()}
    others = {rule: speed for rule, speed in others.items() if rule not in ("traversal", "block")}
    if not others or "traversal" not in records:
        return []
    return [_row(compared, records, max(others, key=others.__getitem__), "traversal", {})]


def to_win(records: dict[str, Record]) -> tuple[list[str], list[str], list[str]]:
    """Rules with which the oracle has something to win, at least; of them, with which the selector closes a quarter of that; and
    with which the oracle has nothing to win, at most."""
    parts = {rule: record["parts"]["all"] for rule, record in records.items()}
    least = {rule: part["oracle"]["gain"]["value"] for rule, part in parts.items() if "oracle" in part}
    worth = [rule for rule, gain in least.items() if gain >= WORTH_WINNING]
    closed = [rule for rule in worth if (parts[rule].get("gap_closed", UNDEFINED)["value"] or 0.0) >= QUARTER]
    most = {rule: part["oracle_same_draws"]["gain"]["value"] for rule, part in parts.items()}
    return worth, closed, [rule for rule, gain in most.items() if gain < WORTH_WINNING]


def labels_right(rounds: pd.DataFrame) -> list[bool]:
    """Of every rule and tree, whether real first rounds agree with the labels."""
    right = []
    for _, part in rounds.groupby(["rule", "action"], sort=False):
        more = rate(part["document"], part["emitted"] - part["expected"], np.ones(len(part)))
        if more["low"] is not None and more["high"] is not None:  # of one document nothing is known
            right.append(more["low"] <= 0 <= more["high"])
    return right


def price_errors(rounds: pd.DataFrame, records: dict[str, Record], priced: Record) -> list[float]:
    """Of every rule's static tree at every setting, over its rounds that nothing cut short."""
    errors = []
    for rule, record in records.items():
        prices = parse_config(Prices, priced[rule]["prices"], f"{PRICES}: {rule}")
        own = with_settings(rounds[(rounds["arm"] == STATIC_TREE + rule) & ~rounds["prefill"]])
        for setting, action in record["static_actions"].items():
            steps = own[own["setting"] == setting]
            whole = steps[steps["levels"] == steps["levels"].max()]
            if not whole.empty:
                predicted_NA = prices.rows(whole["context"].to_numpy(float))
                seconds = whole[[f"seconds_{phase}" for phase in PHASES]].sum(axis=1).mean()
                predicted = predicted_NA[:, priced[rule]["actions"].index(action)].mean()
                errors.append(float(predicted / seconds - 1))
    return errors


def _choices(records: dict[str, Record]) -> Figure:
    """Share of every tree, a row for each rule and slice."""
    rows = {f"{rule}, {name}": made for rule, one in records.items() for name, made in one["uses"].items()}
    used = {name for made in rows.values() for name in made}
    names = sorted(used, key=lambda name: (name[0], [int(number) for number in re.findall(r"\d+", name)]))
    shares = np.array([[made.get(name, 0.0) for name in names] for made in rows.values()])
    texts = [[f"{100 * part:.0f}" if part >= 0.01 else "" for part in row] for row in shares]
    figure = Figure(figsize=(11.5, 1.2 + 0.2 * len(rows)), layout="constrained")
    axes = figure.subplots()
    heat_map(axes, shares, texts, list(rows), names, size=7)
    axes.tick_params("x", rotation=90)
    return figure
