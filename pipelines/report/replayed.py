"""Sections of what recorded texts say: what choosing is worth, from plain decoding over the best static chain to the oracle; and
the block efficiency of every verification rule on the same drafts.

    best rule    the rule (confidence, unlearned or learned) of most tokens per second on validation texts; so is the best static
                 chain chosen, and the rival of every family of simple rules
    gap closed   (best rule - best static) / (oracle - best static), in tokens per second
    error        replayed over measured speed-up over plain decoding, less one, on the prompts that both decoded
    drift        the same of plain decoding's tokens per second: no acceptance enters there
    regret       measured speed of the policy that replay would have chosen over that of the fastest, less one

Figures are of test texts. Shape suffixes: N roots, K rules, A actions (chains and delayed trees).
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipelines.measuring import names
from pipelines.measuring.names import CHAIN, CONFIDENCE, ENTROPY, LOOKUP, PLAIN, RULE, TAKEOVER
from pipelines.measuring.tables import BRANCHES, ORACLE, REPLAYED, replayed_at
from pipelines.outputs import absent, read_json
from pipelines.report.comparison import EFFICIENCY, OVER_CHAIN, By, TimedArms, of_rates, rate
from pipelines.report.inputs import Inputs
from pipelines.report.section import (
    Interval,
    Picture,
    Row,
    Section,
    Table,
    Unit,
    arm_name,
    frame,
    listed,
    shown,
    winners,
)
from predictors.training.labelling import TREES, read_labels
from predictors.training.tables import RootTable

BEST = "best rule"
SIMPLE = (CONFIDENCE, ENTROPY, LOOKUP, TAKEOVER)  # families of simple rules: validation texts choose one of each
CHOICES = {BEST: (CONFIDENCE, ENTROPY, RULE)} | {family: (family,) for family in (CHAIN, *SIMPLE)}
DRAWN = (CHAIN, RULE, BRANCHES, ORACLE)  # families all of whose policies are drawn
STEPS = {"static": CHAIN, "rule": BEST, "oracle": ORACLE}
ROUNDING = 1e-6
NOTES = (
    "Replayed, not run: both models' distributions are recorded at every position along texts of the target. What a verifier "
    "accepts of any draft follows exactly; seconds come from the latency profile. The oracle knows what will be accepted of "
    "the draft model's chains; a rule that looks tokens up may pass it.",
    "Static chain and rule were chosen on validation texts. Rows c: the same texts as if a target pass took so many "
    "draft steps.",
)
CLOCKED = (
    "Of every policy that was timed, on the prompts that both decoded. Drift: how much faster (+) the latency profile makes "
    "plain decoding. Regret: what replay's choice loses on the clock to the fastest policy there."
)
# Median relative error from which on a prediction is none. On one machine it is a few hundredths, and half of it lies beyond what
# another load or number format explains.
MOST_APART = 0.5
APART = (
    f"Latency profile and clock do not belong together: they are more than {MOST_APART:.0%} apart in the median. "
    "One was measured on another machine or while other jobs ran. Run dvc repro -sf latency@PAIR, then dvc repro."
)
REFERENCE = "traversal"  # or the first rule, where that was not traced
RULES = (
    "Every rule is lossless. Expected tokens are exact given the drafted trees, and differences are paired by root: {roots} "
    "roots of {documents} held-out documents. delayed-k.l1.l2 is a trunk of l1 tokens, then k paths of l2. Rules are compared on "
    "trees that branch; block verification takes chains alone. Roots lie evenly along the text, while decoding starts a round "
    "where the last one ended: real rounds need not agree to the last digit."
)


def replay(inputs: Inputs) -> Section | None:
    """Make the section on what choosing is worth; ``None`` where nothing was replayed."""
    folder = inputs.of("replay")
    if not (folder / names.PROVENANCE).is_file():
        return None
    texts, notes = read_replayed(folder / REPLAYED), [*NOTES]
    ratios = read_json(folder / names.PROVENANCE).get("cost_ratios", [])
    elsewhere = {f"c={ratio:g}": read_replayed(folder / replayed_at(ratio)) for ratio in ratios}
    ladder = [row for setting in texts.settings for row in _ladder(setting, texts, elsewhere)]
    caption, label = "Gain over the best static chain, replayed.", "gain over best static, replayed, %"
    drawn = [_policies(texts, setting) for setting in texts.settings]
    pictures = [Picture("replay", caption, drawn, [OVER_CHAIN], label)]
    clock = [facts for setting in texts.settings if (facts := _against_clock(texts, inputs.measured, setting))]
    notes += [CLOCKED] if clock else []
    notes += [APART] if any("regret" not in facts for facts in clock) else []
    gains = listed([f"{shown(texts.gain(BEST, CHAIN, By(one)), Unit.GAIN)} at {one}" for one in texts.settings])
    room = listed([shown(texts.gain(ORACLE, CHAIN, By(one))["value"], Unit.SHARE) for one in texts.settings])
    finding = f"Over the best static chain the best rule gains, replayed, {gains}; the oracle gains {room}."
    tables = [Table("ladder", frame(ladder), "Replayed, with the number of texts")]
    tables.append(Table("clock", frame(clock), "Replayed against measured speed-ups"))
    return Section("replay", "What choosing well is worth", finding, tables, pictures, notes)


def oracle(inputs: Inputs) -> dict[str, float]:
    """Return by sampling setting how many times as fast as the best static chain the oracle is in replay."""
    path = inputs.of("replay") / REPLAYED
    texts = read_replayed(path) if path.is_file() else None
    made = {one: texts.speedup(ORACLE, CHAIN, By(one))["value"] for one in texts.settings} if texts else {}
    return {setting: value for setting, value in made.items() if value is not None}


def read_replayed(path: Path) -> TimedArms:
    """Read replayed decodes as measured ones. Choices are the arms of most tokens per second on validation texts."""
    rows = pd.read_parquet(path).rename(columns={"drafter": "arm"}).assign(repeat=0)
    sums = rows[rows["split"] == names.VALIDATION].groupby(["setting", "family", "arm"], sort=False)
    speeds = sums[["tokens", "seconds"]].sum().reset_index(["setting", "family"])
    choices = [
        {"setting": setting, "family": family, "arm": str((own["tokens"] / own["seconds"]).idxmax())}
        for setting, some in speeds.groupby("setting")
        for family, members in CHOICES.items()
        if not (own := some[some["family"].isin(members)]).empty
    ]
    return TimedArms(rows, {"choices": choices})


def _ladder(setting: str, texts: TimedArms, elsewhere: dict[str, TimedArms]) -> Iterator[Row]:
    """Over all texts, in each slice, and over all texts at other cost ratios."""
    slices = sorted(texts.rows(PLAIN, By(setting))["slice"].unique())
    for name, compared in {"all": texts, **dict.fromkeys(slices, texts), **elsewhere}.items():
        whole = name not in slices
        by = By(setting, slice=None if whole else name)
        static, best, perfect = (compared.rows(arm, by) for arm in STEPS.values())
        _require_oracle_above(f"{setting}, {name}", compared, by)
        gains = {step: compared.gain(STEPS[step], CHAIN, by) for step in ("rule", "oracle")}
        rates = [part[column] for part in (best, static, perfect) for column in ("tokens", "seconds")]
        closed = None
        if (gains["oracle"]["low"] or 0.0) > ROUNDING:
            closed = of_rates(static["document"], rates, lambda made, low, high: (made - low) / (high - low))
        yield {
            "texts": f"{setting}, {name} ({len(static)})",
            "static chain": arm_name(compared.chosen(CHAIN, setting)) if whole else "",
            "best rule": arm_name(compared.chosen(BEST, setting)) if whole else "",
            **{f"{step} over plain": compared.speedup(arm, PLAIN, by)["value"] for step, arm in STEPS.items()},
            **{f"{step} over static": gain for step, gain in gains.items()},
            "gap closed": closed,
        }


def _require_oracle_above(where: str, compared: TimedArms, by: By) -> None:
    """An error below the static chain: by construction (`predictors.replay.decode`) no chain takes less time on any text, at
    whatever prices, so the rows were not replayed together."""
    below, above = (compared.rate(arm, "tokens", "seconds", by)["value"] or 0.0 for arm in (CHAIN, ORACLE))
    if above < below * (1 - ROUNDING):
        raise ValueError(
            f"{where}: replay gives the oracle {above:.4g} tokens/s, below the static chain's {below:.4g} "
            f"({compared.rows(CHAIN, by)['arm'].iloc[0]}), which cannot be. Measure the profile again and replay by it: "
            "dvc repro -sf latency@PAIR, then dvc repro replay@PAIR."
        )


def _policies(texts: TimedArms, setting: str) -> Table:
    """What policies gain over the best static chain, the fastest on top; of simple rules those chosen on validation texts."""
    by, chosen = By(setting), texts.choices(setting)
    kept = [arm for arm in texts.arms(setting) if texts.families[arm] in DRAWN or arm in map(chosen.get, SIMPLE)]
    kept.sort(key=lambda arm: -(texts.gain(arm, CHAIN, by)["value"] or 0.0))
    return texts.table(kept, [OVER_CHAIN], by, marked={arm_name(chosen.get(BEST, ""))})


def _against_clock(texts: TimedArms, clock: TimedArms, setting: str) -> dict[str, Any]:
    """Whether replay would have chosen well, and how far off it was: of measured decodes of what was replayed, and of the same
    with what replay says of them. Nothing where no policy was timed, and little where both are far apart."""
    both, by = ["setting", "prompt", "arm"], By(setting)
    replayed = texts.test[[*both, "tokens", "seconds"]]
    rows = clock.test[clock.test["setting"] == setting].merge(replayed[both], on=both)
    again = rows.drop(columns=["tokens", "seconds"]).merge(replayed, on=both, validate="many_to_one")
    sides = {"replayed": TimedArms(again, texts.findings), "measured": TimedArms(rows, texts.findings)}
    arms = [arm for arm in sides["measured"].families if arm != PLAIN and not _overlaps(arm)]
    made = {side: [one.speedup(arm, PLAIN, by)["value"] for arm in arms] for side, one in sides.items()}
    known = pd.DataFrame(made, arms, dtype=float).dropna()
    if known.empty:
        return {}
    facts = {"sampling": setting, "prompts": rows["prompt"].nunique(), "policies": len(known)}
    errors = (known["replayed"] / known["measured"] - 1).abs()
    if errors.median() > MOST_APART:
        return facts
    choice, fastest = (str(known[side].idxmax()) for side in sides)
    priced, timed = (one.rate(PLAIN, "tokens", "seconds", by)["value"] for one in sides.values())
    return facts | {
        "drift": None if priced is None or timed is None else priced / timed - 1,
        "median error": float(errors.median()),
        "largest error": float(errors.max()),
        "rank correlation": float(known["replayed"].corr(known["measured"], method="spearman")),
        "replay's choice": arm_name(choice),
        "fastest": arm_name(fastest),
        "regret": sides["measured"].gain(choice, fastest, by),
    }


def _overlaps(arm: str) -> bool:
    """Tell whether an arm drafts during the target's pass: what both take at once, replay estimates by a virtual clock."""
    branching = names.branch_arm(arm)
    return branching is not None and branching.preset != names.WITHOUT_BRANCHES


def verifiers(inputs: Inputs) -> Section | None:
    """Make the section on verification rules, from the labels of kind ``trees``; ``None`` where no trees were labelled."""
    path, traces = inputs.data / "labels" / "trees.parquet", inputs.data / "traces" / "trees"
    if not path.is_file() or absent(traces):
        return None
    traced = RootTable.read(traces)
    roots = traced.labelled(read_labels(path, TREES, traced.manifest.content_hash)).rows(names.TEST)
    rules, chain_A = roots.manifest.rules, np.array([action.is_chain for action in roots.actions])
    place = rules.index(REFERENCE) if REFERENCE in rules else 0
    over, gains, tables = f"{EFFICIENCY} over {rules[place]}", dict[str, Interval | None](), list[Table]()
    for number, setting in enumerate(roots.settings):
        here_N = roots.setting_N == number
        mean_NKA, mean = roots.mean_NKA[here_N], partial(_mean, roots.column("document")[here_N])
        tree_NK, chain_NK = (mean_NKA[:, :, kept_A].mean(axis=2) for kept_A in (~chain_A, chain_A))
        columns = {"on trees": tree_NK, over: tree_NK - tree_NK[:, [place]], "on chains": chain_NK}
        rows: list[dict[str, Any]] = [
            {"rule": rule} | {name: mean(made_NK[:, one]) for name, made_NK in columns.items()}
            for one, rule in enumerate(rules)
        ]
        rows[place][over] = None
        gains |= {f"{rule} at {setting.name}": row[over] for rule, row in zip(rules, rows, strict=True)}
        tables.append(Table(setting.name, frame(rows), marked={rules[place]}, unit=Unit.NUMBER))
        actions = [
            {"action": action.name} | {rule: mean(mean_NKA[:, one, column]) for one, rule in enumerate(rules)}
            for column, action in enumerate(roots.actions)
        ]
        tables.append(Table(f"{setting.name}, by action", frame(actions), unit=Unit.NUMBER))
    finding = f"Surely more tokens a pass than {rules[place]} on the same trees: {winners(Unit.NUMBER, 0.0, gains)}."
    note = RULES.format(roots=len(roots), documents=len(set(roots.column("document"))))
    pictures = [Picture("rules", f"{over.capitalize()}, on all trees that branch.", tables[::2], [over], over)]
    return Section("rules", "Which verification rule", finding, tables, pictures, [note])


def _mean(documents: np.ndarray, values_N: np.ndarray) -> Interval | None:
    """The mean over roots with its interval over documents; ``None`` where the rule does not take the drafts."""
    return rate(documents, values_N, np.ones(len(values_N))) if np.isfinite(values_N).all() else None
