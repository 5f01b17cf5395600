"""Section ``selection``: what choosing a delayed tree at every root is worth, on exact labels and on the clock.

    exact     Σ E / Σ T over roots of held-out documents: exact expectations, predicted seconds (paper 004, Tables 4 to 7)
    labels    mean emitted tokens of real first rounds less the labels' expectation, paired by root
    prices    predicted / measured seconds of whole rounds of a rule's static tree, less 1

A label is right where that difference may be 0.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from pipelines.measuring.names import PROVENANCE
from pipelines.measuring.tables import BUNDLE, FIRST_ROUNDS, PRICES, SELECTOR, STATIC_TREE
from pipelines.outputs import read_json
from pipelines.reporting.comparison import RATES, rate, with_settings
from pipelines.reporting.inputs import Inputs, Record
from pipelines.reporting.plots import picture, whiskers
from pipelines.reporting.section import Metric, Section, Table, column, grid
from pipelines.reporting.text import GAIN, SHARE, UNDEFINED, changed, highest, listed, shown, surely_above
from predictors.config import parse_config
from predictors.latency.actions import Prices
from predictors.rounds import PHASES

MOST_USED = 2  # trees that are named
WORTH_WINNING, QUARTER = 0.03, 0.25  # a gain of the oracle below which there is nothing to win, and a share of it
EXACT, CLOCK, LEAST = "gain, exact labels", "gain, on the clock", "oracle's, at least"
LABEL = "gain over the rule's best static tree, %"


def section(inputs: Inputs) -> Section | None:
    """``None`` where no selector was checked."""
    folder = inputs.of("selection")
    if not (folder / PROVENANCE).is_file():
        return None
    fitted = {str(record["rule"]): record for record in inputs.fitted("tree").values()}
    priced = read_json(folder / PRICES)
    records = {rule: fitted[rule] for rule in priced}
    made = _gains(inputs, records)
    own = Table(made.rows[: len(records)])
    exact, clock = (column([own], name) for name in (EXACT, CLOCK))
    sure = {rule for rule, gain in clock.items() if surely_above(gain)}
    uses = {f"{rule}, {name}": (made,) for rule, one in records.items() for name, made in one["uses"].items()}
    finding = (
        f"Choosing surely gains with {sum(map(surely_above, exact.values()))} of {len(records)} rules on exact labels, with "
        f"{len(sure)} on the clock; most on the clock: {highest(clock)}."
    )
    tables = [replace(made, marked=sure), grid("rule, slice", uses, {"trees": _used}, "Trees chosen at held-out roots")]
    caption = "Gain of choosing over the best static tree of the same rule."
    pictures = [picture("selection", caption, whiskers, [own], [EXACT, CLOCK, LEAST], LABEL)]
    notes = _notes(inputs, records, priced)
    return Section("selection", "Which tree to draft, chosen at every root", finding, tables, pictures, notes)


def _notes(inputs: Inputs, records: dict[str, Record], priced: Record) -> list[str]:
    folder, first = inputs.of("selection"), next(iter(records.values()))
    right = labels_right(pd.read_parquet(folder / FIRST_ROUNDS))
    errors = price_errors(inputs.measured.rounds, records, priced) or [0.0]
    drift = float(np.median(errors))
    left = float(np.median([abs((1 + error) / (1 + drift) - 1) for error in errors]))
    capped = read_json(folder / PROVENANCE)["capped"] or inputs.measured.findings["capped"]
    worth, closed, nothing = map(listed, to_win(records))
    return [
        "A delayed tree is a trunk of L1 tokens, then K paths of L2 (K.L1.L2). A selector reads both models' states and "
        f"names a tree before its first token is drawn. Exact labels are of {first['roots']} roots of {first['documents']} "
        "held-out documents. The oracle's gain lies between two bounds, scored on another draw and on the same draws; the "
        "share closed is of the lower.",
        f"The oracle would gain 3 % or more with {worth}; the selector closes a quarter of that with {closed}. Even the "
        f"oracle would gain less than 3 % with {nothing}.",
        f"Labels agree with real rounds at {sum(right)} of {len(right)} rules and trees. Prices of steps are off by "
        f"{shown(drift, GAIN)} in the median, which moves no choice, and by {shown(left, SHARE)} beyond that.",
        *(["The time cap ended this measurement early."] if capped else []),
    ]


def _gains(inputs: Inputs, records: dict[str, Record]) -> Table:
    """A row for each rule's selector and static tree, and one for the selector that promised most on validation roots over
    traversal's static tree; exact labels compare those of one rule."""
    compared, places = inputs.measured, {rule: (rule, rule) for rule in records}
    others = [rule for rule in records if rule not in ("traversal", "block")]
    if others and "traversal" in records:
        best = max(others, key=lambda rule: float(records[rule]["validation_tokens_per_second"]))
        places[f"{best} over traversal"] = best, "traversal"
    labels = {(rule, rule): record["parts"]["all"] for rule, record in records.items()}

    def tree(rule: str, other: str) -> str:
        return ", ".join(f"{setting}: {action}" for setting, action in records[other]["static_actions"].items())

    def labelled(policy: str) -> Metric:
        return lambda *rules: labels.get(rules, {}).get(policy, {}).get("gain")

    def deciding(rule: str, other: str) -> float | None:
        return changed(compared.rate(BUNDLE + rule, *RATES["deciding"]), lambda share: 100 * share)["value"]

    columns: dict[str, Metric] = {
        "best static tree": tree,
        "its speed-up over plain": lambda rule, other: compared.speedup(STATIC_TREE + other),
        EXACT: labelled(SELECTOR),
        LEAST: labelled("oracle"),
        "at most": labelled("oracle_same_draws"),
        "share closed": lambda *rules: labels.get(rules, {}).get("gap_closed"),
        CLOCK: lambda rule, other: compared.gain(BUNDLE + rule, STATIC_TREE + other),
        "deciding, % of time": deciding,
    }
    return grid("rule", places, columns)


def _used(shares: dict[str, float]) -> str:
    """The most frequent trees first."""
    ordered = sorted(shares.items(), key=lambda one: -one[1])
    rest = {"others": sum(share for _, share in ordered[MOST_USED:])} if ordered[MOST_USED:] else {}
    return ", ".join(f"{name} {shown(share, SHARE)}" for name, share in [*ordered[:MOST_USED], *rest.items()])


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
