"""Section ``replay``: what choosing is worth on recorded texts, from plain decoding over the best static chain to the oracle.

    best rule    the rule (confidence, unlearned or learned) of most tokens per second on validation texts; so is the best static
                 chain chosen, and the rival of every family of simple rules
    gap closed   (best rule - best static) / (oracle - best static), in tokens per second
    error        replayed over measured speed-up over plain decoding, less one, on the prompts that both decoded
    regret       measured speed of the policy that replay would have chosen over that of the fastest, less one

Figures are of test texts.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from pipelines.measuring import names
from pipelines.measuring.names import CHAIN, CONFIDENCE, ENTROPY, LOOKUP, PLAIN, RULE, TAKEOVER
from pipelines.measuring.tables import BRANCHES, ORACLE, REPLAYED, replayed_at
from pipelines.outputs import read_json
from pipelines.report.comparison import By, TimedArms, of_rates, places
from pipelines.report.inputs import Inputs
from pipelines.report.latency import APART, MOST_APART
from pipelines.report.plots import ends, picture, whiskers
from pipelines.report.section import OVER_CHAIN, SPEEDUP, Cell, Row, Section, Table, grid
from pipelines.report.text import GAIN, SHARE, UNDEFINED, arm_name, listed, shown, surely_above

BEST = "best rule"
RIVALS = (CONFIDENCE, ENTROPY, LOOKUP, TAKEOVER)  # families of simple rules: validation texts choose one of each
CHOICES = {BEST: (CONFIDENCE, ENTROPY, RULE)} | {family: (family,) for family in (CHAIN, *RIVALS)}
DRAWN = (CHAIN, RULE, BRANCHES, ORACLE)  # families all of whose policies are drawn
KNOWN = ("median error", "largest error", "replay's choice", "fastest", "regret")  # unless replay is far off the clock
STEPS = {"static": CHAIN, "rule": BEST, "oracle": ORACLE}
ROUNDING = 1e-6
NOTES = (
    "Replayed, not run: both models' distributions are recorded at every position along texts of the target. What a verifier "
    "accepts of any draft follows exactly; seconds come from the latency profile. The oracle knows what will be accepted of "
    "the draft model's chains; a rule that looks tokens up may pass it.",
    "Static chain and rule were chosen on validation texts. Rows c: the same texts as if a target pass took so many "
    "draft steps.",
)
REGRET = "Regret: what replay's choice loses on the clock to the fastest policy there."
CLOCKED = "Every policy that was timed, on the prompts that both decoded."


def section(inputs: Inputs) -> Section | None:
    """``None`` where nothing was replayed."""
    folder = inputs.of("replay")
    if not (folder / names.PROVENANCE).is_file():
        return None
    texts = _read(folder / REPLAYED)
    ratios = read_json(folder / names.PROVENANCE).get("cost_ratios", [])
    elsewhere = {f"c={ratio:g}": _read(folder / replayed_at(ratio)) for ratio in ratios}
    rows = [row for setting in texts.settings for row in _ladder(setting, texts, elsewhere)]
    gains = {setting: texts.gain(BEST, CHAIN, By(setting)) for setting in texts.settings}
    said = listed([f"{shown(gain, GAIN)} at {setting}" for setting, gain in gains.items()])
    room = listed([shown(texts.gain(ORACLE, CHAIN, By(one))["value"], SHARE) for one in texts.settings])
    by_clock = [*_against_clock(texts, inputs.measured)]
    notes = [REGRET, *([APART] if any(table is None for _, table in by_clock) else [])] if by_clock else []
    caption, label = "Gain over the best static chain, the fastest on top.", "gain over best static, replayed, %"
    panels = [_policies(texts, setting) for setting in texts.settings]
    pictures = [picture("replay", caption, whiskers, panels, [OVER_CHAIN], label)]
    if timed := [table for _, table in by_clock if table is not None]:
        pictures.append(picture("replay_clock", CLOCKED, whiskers, timed, ["replayed", "measured"], SPEEDUP, 1.0))
    tables = [Table(rows, "Replayed, with the number of texts")]
    tables.append(Table([row for row, _ in by_clock], "Replayed against measured speed-ups"))
    finding = f"Over the best static chain the best rule gains, replayed, {said}; the oracle gains {room}."
    return Section("replay", "What choosing well is worth", finding, tables, pictures, [*NOTES, *notes])


def oracle(inputs: Inputs) -> dict[str, float]:
    """Return by sampling setting how many times as fast as the best static chain the oracle is in replay."""
    path = inputs.of("replay") / REPLAYED
    texts = _read(path) if path.is_file() else None
    made = {one: texts.speedup(ORACLE, CHAIN, By(one))["value"] for one in texts.settings} if texts else {}
    return {setting: value for setting, value in made.items() if value is not None}


def _read(path: Path) -> TimedArms:
    """Replayed decodes with the columns of measured ones. Choices are the arms of most tokens per second on validation texts."""
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
    parts = {"all": texts, **dict.fromkeys(slices, texts)}
    for name, compared in (parts | elsewhere).items():
        whole = name not in slices
        by = By(setting, slice=None if whole else name)
        static, best, perfect = (compared.rows(arm, by) for arm in STEPS.values())
        _require_oracle_above(f"{setting}, {name}", compared, by)
        gains = {step: compared.gain(STEPS[step], CHAIN, by) for step in ("rule", "oracle")}
        rates = [part[column] for part in (best, static, perfect) for column in ("tokens", "seconds")]
        closed = dict(UNDEFINED)
        if surely_above(gains["oracle"], ROUNDING):
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
    kept = [arm for arm in texts.arms(setting) if texts.families[arm] in DRAWN or arm in map(chosen.get, RIVALS)]
    kept.sort(key=lambda arm: -(texts.gain(arm, CHAIN, by)["value"] or 0.0))
    return grid("policy", places(kept, by), texts.metrics(OVER_CHAIN), setting, marked={arm_name(chosen.get(BEST, ""))})


def _against_clock(texts: TimedArms, clock: TimedArms) -> Iterator[tuple[Row, Table | None]]:
    """By sampling setting, whether replay would have chosen well, and both speed-ups of every policy that was timed: of measured
    decodes of what was replayed, and of the same with what replay says of them."""
    both = ["setting", "prompt", "arm"]
    replayed = texts.test[[*both, "tokens", "seconds"]]
    for setting in texts.settings:
        rows = clock.test[clock.test["setting"] == setting].merge(replayed[both], on=both)
        again = rows.drop(columns=["tokens", "seconds"]).merge(replayed, on=both, validate="many_to_one")
        foreseen, timed = (TimedArms(table, texts.findings) for table in (again, rows))
        arms = {arm_name(arm): arm for arm in timed.families if arm != PLAIN and not _overlaps(arm)}
        by, columns = By(setting), {"replayed": foreseen.speedup, "measured": timed.speedup}
        made = grid("policy", {name: (arm, PLAIN, by) for name, arm in arms.items()}, columns, setting)
        speeds = pd.DataFrame(
            {one: {row["policy"]: ends(row[one])[0] for row in made.rows} for one in columns}
        ).dropna()
        if speeds.empty:
            continue
        facts: dict[str, Cell] = {"sampling": setting, "prompts": rows["prompt"].nunique(), "policies": len(speeds)}
        errors = (speeds["replayed"] / speeds["measured"] - 1).abs()
        if errors.median() > MOST_APART:
            yield facts | dict.fromkeys(KNOWN), None
            continue
        choice, fastest = (str(speeds[one].idxmax()) for one in columns)
        regret = timed.gain(arms[choice], arms[fastest], by)
        known = (float(errors.median()), float(errors.max()), choice, fastest, regret)
        yield facts | dict(zip(KNOWN, known, strict=True)), made.only(set(speeds.index))


def _overlaps(arm: str) -> bool:
    """Tell whether an arm drafts during the target's pass: what both take at once, replay estimates by a virtual clock."""
    branching = names.branch_arm(arm)
    return branching is not None and branching.preset != names.WITHOUT_BRANCHES
