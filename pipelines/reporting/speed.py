"""Section ``speed``: how fast every main arm decodes, what its rounds came to, and where the time goes.

block efficiency = emitted / target passes      rollback rate = rolled back / levels      same text: greedy, as plain decoding's
"""

from collections.abc import Iterable, Iterator
from functools import partial

from pipelines.applicability import NOT_APPLICABLE
from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_FORWARD, HF_PLAIN, LEARNED, PLAIN, chain_gamma
from pipelines.measuring.provenance import of_target_alone
from pipelines.reporting.comparison import PARTS, RATES, By, Comparison, across, rate
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.plots import curves, picture
from pipelines.reporting.section import EFFICIENCY, OVER_CHAIN, SPEEDUP, Cell, Check, Section, Table, grid
from pipelines.reporting.text import GAIN, SHARE, TIMES, arm_name, shown

NOTE = (
    "Intervals are 95 %, over documents. {prompts} held-out prompts of {documents} documents. Arms were timed interleaved in "
    "one process: chains and plain decoding on all prompts, other arms on some. Two arms are compared on the prompts that both "
    "decoded; every prompt weighs alike, while the gate weighs slices by their share."
)
SWEEP = "Speed-up over plain decoding by static draft length γ"


def section(inputs: Inputs) -> Section:
    """Of the main arms; others have sections of their own."""
    measured, compared = inputs.measured.main, Comparison(inputs.measured.main)
    alone = of_target_alone(measured.origin)
    exact, form = inputs.measured.exactness, inputs.measured.exact_format
    but = "exactly" if form == "float32" else "but for near-ties"
    exactly = f"; in {form} {sum(exact.values())} of {len(exact)} arms write Hugging Face's greedy text {but}"
    tables = [
        arm_table(compared, setting, measured.arms(setting), setting + (exactly if measured.greedy(setting) else ""))
        for setting in measured.settings
    ]
    best = {} if alone else {setting: measured.chosen(CHAIN, setting) for setting in measured.settings}
    said = [
        f"{arm_name(arm)} {shown(compared.speedup(arm, PLAIN, By(one)), TIMES)} at {one}" for one, arm in best.items()
    ]
    fastest = f"The best static chain, chosen on validation prompts, over plain decoding: {', '.join(said)}."
    count = {"prompts": measured.test["prompt"].nunique(), "documents": measured.test["document"].nunique()}
    return Section(
        "speed",
        "How fast",
        f"Static chains are {NOT_APPLICABLE}." if alone else fastest,
        [*tables, _slices(compared), *(_parts(compared, setting) for setting in measured.settings)],
        [] if alone else [picture("sweep", SWEEP, curves, [_sweep(compared)])],
        [NOTE.format(**count), *measured.findings["notes"]],
        checks=[*_checks(compared)],
    )


def arm_table(compared: Comparison, setting: str, arms: Iterable[str], caption: str) -> Table:
    """Speeds and counts of arms at a sampling setting; those that validation prompts chose are marked."""

    def same(arm: str, by: By) -> Cell:
        equal = compared.rows(arm, by)["equals_plain"].dropna()
        return f"{int(equal.sum())}/{len(equal)}" if len(equal) else None

    columns = {
        "prompts": lambda arm, by: compared.rows(arm, by).index.unique("prompt").size,
        "tokens/s": lambda arm, by: compared.pace(arm, by)["value"],
        **compared.metrics(SPEEDUP, OVER_CHAIN, EFFICIENCY, "drafted per round", "rollback rate"),
        "same text": same,
    }
    chosen = set(map(arm_name, compared.measured.choices(setting).values()))
    return grid("arm", compared.places(arms, By(setting)), columns, caption, marked=chosen)


def _slices(compared: Comparison) -> Table:
    measured = compared.measured
    choices = {family for setting in measured.settings for family in measured.choices(setting)} - {CHAIN}
    learned = [arm for arm, family in measured.families.items() if family == LEARNED]
    places = {arm_name(arm): (arm,) for arm in [*sorted(choices), *learned]}
    columns = across(partial(compared.metric, OVER_CHAIN), {name: By(slice=name) for name in measured.slices})
    return grid("arm", places, columns, "Gain over the best static chain by slice, all sampling settings", unit=GAIN)


def _parts(compared: Comparison, setting: str) -> Table:
    """Models of these arms work one after the other, so that neither waits. Of Hugging Face's arms no parts are known."""
    arms = [PLAIN, *sorted(compared.measured.choices(setting).values())]
    rounds = {arm: compared.rows(arm, By(setting))["rounds"] for arm in arms}
    timed = [arm for arm, made in rounds.items() if len(made) and not made.isna().any()]
    shares = {part: RATES[part] for part in PARTS if part != "wait"}
    parts = compared.metrics("ms/token") | {
        part: lambda arm, by, of=of: compared.rate(arm, of[0], of[1], by)["value"] for part, of in shares.items()
    }
    return grid("arm", compared.places(timed, By(setting)), parts, f"Where the time goes, {setting}")


def _sweep(compared: Comparison) -> Table:
    """The static chains of every sampling setting by their length."""
    settings, families = compared.measured.settings, compared.measured.families
    chains = {gamma: (arm,) for arm in families if (gamma := chain_gamma(arm)) is not None}
    columns = across(partial(compared.metric, SPEEDUP), {setting: By(setting) for setting in settings})
    return grid("static draft length γ (tokens)", chains, columns, SWEEP, unit=TIMES)


def _checks(compared: Comparison) -> Iterator[Check]:
    measured, loop = compared.measured, compared.measured.loop
    if not loop.empty:
        items = loop.groupby(["arm", "temperature", "prompt"], sort=True).agg(
            document=("document", "first"), loop=("loop", "min"), passes=("passes", "min")
        )
        for plain, part in items.groupby(items.index.get_level_values("arm") == PLAIN):
            over = rate(part["document"], part["loop"] - part["passes"], part["passes"])
            name = f"loop overhead, {'plain' if plain else 'best static chain'}"
            yield Check(name, over, 0.1, SHARE, at_most=True)
    for setting in measured.settings:
        assisted = 1.0 if measured.greedy(setting) else 1.1
        for arm, other, bar in ((PLAIN, HF_PLAIN, 1.15), (CHAIN, HF_ASSISTED, assisted), (PLAIN, HF_FORWARD, 1.0)):
            ratio = compared.speedup(arm, other, By(setting))
            if ratio["value"] is not None:
                yield Check(f"{arm_name(arm)} over {arm_name(other)}, {setting}", ratio, bar)
