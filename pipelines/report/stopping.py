"""Section ``stopping``: which rule that stops drafting pays on the clock, and what stop models know of held-out tokens.

gain       over the static chain chosen on validation prompts, and over the one fastest here: a rule that pays beats both
deciding   seconds of the rule / seconds of the rounds
replayed   gain over the best static length where nothing cut a draft short; the oracle is the most that a rule can bring
"""

from pipelines.measuring.names import CHAIN, CONFIDENCE, CONFIG, DYNAMIC, ENTROPY, FORK, PLAIN, RULE, TREES
from pipelines.report.comparison import By, TimedArms, places
from pipelines.report.inputs import Inputs, Record
from pipelines.report.plots import curves, picture, whiskers
from pipelines.report.section import EFFICIENCY, OVER_CHAIN, Section, Table, column, grid
from pipelines.report.text import GAIN, NUMBER, Interval, arm_name, highest, listed, shown, surely_above

TUNED = (CHAIN, CONFIDENCE, ENTROPY, FORK, CONFIG)  # families whose setting is chosen on validation prompts
FAMILIES = (CHAIN, CONFIDENCE, ENTROPY, RULE, FORK, CONFIG, DYNAMIC)
HERE = "gain over fastest chain here"
REPLAYED = {
    "its rule": "model",
    "forced": "asked",
    "at no cost": "asked for nothing",
    "paper's": "paper",
    "oracle": "perfect",
}
WITH_INTERVALS = ("its rule", "oracle")
NOTES = (
    "A stop model predicts whether a drafted token will be accepted. Replay at this machine's prices chose its rule on "
    "validation documents. Where none surely gained the model is bypassed: the best static length is drafted. A fork "
    "named after a model stops where that model rejects every path. A drawn token is verified: every rule is lossless.",
)
ALIVE = "Held-out drafts that are alive at a position, observed and as each model predicts."


def section(inputs: Inputs) -> Section | None:
    """``None`` where no rule and no tree was timed."""
    measured, models = inputs.measured, inputs.fitted("stop")
    families = measured.families
    if not {RULE, *TREES} & set(families.values()):
        return None
    tables = [_timed(measured, setting) for setting in measured.settings]
    label = "gain over the best static chain, %"
    pictures = [picture("stops", "Gain over the best static chain.", whiskers, tables, [OVER_CHAIN], label)]
    known, sure = paying(
        tables, {arm_name(arm) for arm, family in families.items() if family in (CONFIDENCE, ENTROPY, RULE)}
    )
    finding = f"Rules that surely beat the best and the fastest static chain: {len(sure) or 'none'}"
    finding += f"; highest estimate: {highest(sure or known)}"
    if models:
        parts = next(iter(models.values()))["parts"].items()
        most = [f"{shown(part['policies']['perfect']['gain']['value'], GAIN)} at {setting}" for setting, part in parts]
        finding += f"; in replay the oracle gains {listed(most)}"
        tables.append(_known(models))
        pictures.append(picture("alive", ALIVE, curves, [_alive(models)]))
    return Section("stopping", "When to stop drafting", f"{finding}.", tables, pictures, NOTES)


def _timed(compared: TimedArms, setting: str) -> Table:
    """Family by family; of tuned families only what validation prompts chose, and nothing that was bypassed in every round."""
    families, chosen, arms = compared.families, compared.choices(setting), compared.arms(setting)
    by, chains = By(setting), [arm for arm in arms if families[arm] == CHAIN]
    fastest = max(chains, key=lambda arm: compared.speedup(arm, PLAIN, by)["value"] or 0.0)
    kept = []
    for arm in sorted(arms, key=lambda arm: (families[arm] in TREES, families[arm], arm)):
        tuned, rows = families[arm] in TUNED and arm != chosen.get(families[arm]), compared.rows(arm, by)
        if families[arm] in FAMILIES and not tuned and rows["bypassed"].sum() < rows["rounds"].sum():
            kept.append(arm)
    columns = {
        **compared.metrics(OVER_CHAIN),
        HERE: lambda arm, by: compared.gained(arm, fastest, by),
        **compared.metrics("gain over best static fork", of={arm for arm in kept if families[arm] in TREES}),
        **compared.metrics("drafted per round", EFFICIENCY, "deciding"),
    }
    caption = f"{setting}; the fastest chain here is {arm_name(fastest)}"
    return grid("rule", places(kept, by), columns, caption, marked=set(map(arm_name, kept[:1])))


def paying(tables: list[Table], rules: set[str]) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Gains over the best static chain of rules: of all that are known, and of those surely above it and the fastest here."""
    known, over_fastest = (column([table.only(rules) for table in tables], name) for name in (OVER_CHAIN, HERE))
    sure = {rule: gain for rule, gain in known.items() if surely_above(gain) and surely_above(over_fastest.get(rule))}
    return known, sure


def _known(models: dict[str, Record]) -> Table:
    """Of every model and sampling setting."""
    rows = []
    for model, record in models.items():
        tokens = record["tokens"]["all"]
        for setting, part in record["parts"].items():
            row = {"model": model, "AUROC": tokens["auroc"], "ECE": tokens["ece"], "sampling": setting}
            gains = {name: part["policies"][policy]["gain"] for name, policy in REPLAYED.items()}
            rows.append(row | {name: gain if name in WITH_INTERVALS else gain["value"] for name, gain in gains.items()})
    return Table(rows, "Held-out tokens, and each model's rules in replay")


def _alive(models: dict[str, Record]) -> Table:
    """Share of drafts that survive up to a position, predicted (product of chances) and observed."""
    shares = {name: record["product_bias"]["predicted"] for name, record in models.items()}
    shares["observed"] = next(iter(models.values()))["product_bias"]["observed"]
    rows = [
        {"position in the draft": place}
        | {name: made[place - 1] for name, made in shares.items() if place <= len(made)}
        for place in range(1, 1 + max(map(len, shares.values())))
    ]
    return Table(rows, "Share of drafts alive", unit=NUMBER)
