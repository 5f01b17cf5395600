"""Section ``stopping``: which rule that stops drafting pays on the clock, and what stop models know of held-out tokens.

gain       over the static chain chosen on validation prompts, and over the one fastest here: a rule that pays beats both
deciding   seconds of the rule / seconds of the rounds
replayed   gain over the best static length where nothing cut a draft short; the oracle is the most that a rule can bring
"""

from collections.abc import Iterator

from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, CONFIDENCE, CONFIG, DYNAMIC, FORK, PLAIN, RULE, TREES
from pipelines.reporting.comparison import Comparison, at
from pipelines.reporting.inputs import Inputs, Record
from pipelines.reporting.names import arm_name
from pipelines.reporting.plots import draw, whiskers
from pipelines.reporting.section import EFFICIENCY, OVER_CHAIN, Picture, Row, Section, Table
from pipelines.reporting.text import GAIN, Interval, listed, shown, surely_above

TUNED = (CHAIN, CONFIDENCE, FORK, CONFIG)  # families whose setting is chosen on validation prompts
FAMILIES = (CHAIN, CONFIDENCE, RULE, FORK, CONFIG, DYNAMIC)
COUNTS = ("drafted per round", EFFICIENCY, "deciding")
REPLAYED = {"forced": "asked", "at no cost": "asked for nothing", "paper's": "paper"}
NOTES = (
    "A stop model predicts whether a drafted token will be accepted. Replay at this machine's prices chose its rule on "
    "validation documents. Where none surely gained the model is bypassed: the best static length is drafted. A fork "
    "named after a model stops where that model rejects every path. A drawn token is verified: every rule is lossless.",
)
ALIVE = "Held-out drafts that are alive at a position, observed and as each model predicts."
Gains = dict[str, tuple[Interval, Interval]]  # by arm, over the best static chain and over the fastest here


def section(inputs: Inputs) -> Section | None:
    """``None`` where no rule and no tree was timed."""
    measured, models = inputs.measured, inputs.fitted("stop")
    if not {RULE, *TREES} & set(measured.families.values()):
        return None
    gains = {setting: gains_of(inputs.comparison, setting) for setting in measured.settings}
    tables = [_timed(inputs.comparison, setting, made) for setting, made in gains.items()]
    pictures = [Picture("stops", draw(_gains, gains), "Gain over the best static chain.")]
    if models:
        tables.append(Table([*_known(models)], "Held-out tokens, and each model's rules in replay"))
        pictures.append(Picture("alive", draw(alive, models), ALIVE))
    rules = {arm for arm, family in measured.families.items() if family in (CONFIDENCE, RULE)}
    said = _finding({(setting, arm): made[arm] for setting, made in gains.items() for arm in made if arm in rules})
    return Section("stopping", "When to stop drafting", f"{said}{_oracle(models)}.", tables, pictures, NOTES)


def fastest_chain(compared: Comparison, setting: str) -> str:
    """The static chain that was fastest on these prompts."""
    chains = [arm for arm in compared.measured.arms(setting) if compared.measured.families[arm] == CHAIN]
    return max(chains, key=lambda arm: compared.speedup(arm, PLAIN, at(setting))["value"] or 0.0)


def gains_of(compared: Comparison, setting: str) -> Gains:
    """Family by family; of tuned families only what validation prompts chose, and nothing that was bypassed in every round."""
    measured, by, fastest = compared.measured, at(setting), fastest_chain(compared, setting)
    families, chosen = measured.families, measured.choices(setting)
    gains: Gains = {}
    for arm in sorted(measured.arms(setting), key=lambda arm: (families[arm] in TREES, families[arm], arm)):
        tuned, rows = families[arm] in TUNED and arm != chosen.get(families[arm]), compared.rows(arm, by)
        if families[arm] in FAMILIES and not tuned and rows["bypassed"].sum() < rows["rounds"].sum():
            gains[arm] = compared.gain(arm, CHAIN, by), compared.gain(arm, fastest, by)
    return gains


def _timed(compared: Comparison, setting: str, gains: Gains) -> Table:
    families, by, fork = compared.measured.families, at(setting), compared.measured.choices(setting).get(FORK)
    rows: list[Row] = []
    for arm, (over_chain, over_fastest) in gains.items():
        over = {OVER_CHAIN: over_chain, "gain over fastest chain here": over_fastest}
        over_fork = compared.gain(arm, FORK, by) if families[arm] in TREES and arm != fork else None
        counts = compared.counts(arm, COUNTS, by)
        rows.append({"rule": arm_name(arm), **over, "gain over best static fork": over_fork, **counts})
    caption = f"{setting}; the fastest chain here is {arm_name(fastest_chain(compared, setting))}"
    return Table(rows, caption, frozenset(map(arm_name, [*gains][:1])))


def _known(models: dict[str, Record]) -> Iterator[Row]:
    for model, record in models.items():
        tokens = record["tokens"]["all"]
        for setting, part in record["parts"].items():
            known = {"model": model, "AUROC": tokens["auroc"], "ECE": tokens["ece"], "sampling": setting}
            gains = {policy: made["gain"] for policy, made in part["policies"].items()}
            others = {name: gains[policy]["value"] for name, policy in REPLAYED.items()}
            yield {**known, "its rule": gains["model"], **others, "oracle": gains["perfect"]}


def _finding(gains: dict[tuple[str, str], tuple[Interval, Interval]]) -> str:
    """Which rule pays: its gain over both chains is surely above zero."""
    known = {key: made for key, made in gains.items() if made[0]["value"] is not None}
    sure = {key: made for key, made in known.items() if all(map(surely_above, made))}
    said = f"Rules that surely beat the best and the fastest static chain: {len(sure) or 'none'}"
    if not known:
        return said
    (setting, arm), (gain, _) = max((sure or known).items(), key=lambda item: item[1][0]["value"] or 0.0)
    return f"{said}; highest estimate: {arm_name(arm)}, {shown(gain, GAIN)} at {setting}"


def _oracle(models: dict[str, Record]) -> str:
    """What perfect foresight brings in replay, as the first model's record has it."""
    parts: Record = next(iter(models.values()), {"parts": {}})["parts"]
    gains = [f"{shown(part['policies']['perfect']['gain']['value'], GAIN)} at {name}" for name, part in parts.items()]
    return f"; in replay the oracle gains {listed(gains)}" if gains else ""


def _gains(gains: dict[str, Gains]) -> Figure:
    """The chain that is compared with, the first of them, is left out."""
    panels = {
        setting: {arm_name(arm): (gain,) for arm, (gain, _) in list(made.items())[1:]}
        for setting, made in gains.items()
    }
    return whiskers(panels, "gain over the best static chain", line=0, percent=True)


def alive(models: dict[str, Record]) -> Figure:
    """Share of drafts that survive up to a position, predicted (product of chances) and observed."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    curves = {name: record["product_bias"]["predicted"] for name, record in models.items()}
    curves["observed"] = next(iter(models.values()))["product_bias"]["observed"]
    for name, shares in curves.items():
        axes.plot(range(1, 1 + len(shares)), shares, marker="o", markersize=3, linewidth=1, label=name)
    axes.set(xlabel="position in the draft", ylabel="share of drafts alive", ylim=(0, 1))
    axes.legend()
    return figure
