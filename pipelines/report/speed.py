"""Section ``speed``: how fast every main arm decodes, what its rounds came to, and where the time goes.

block efficiency = emitted / target passes      m_incl = 1 + accepted / segments, of which each ends at a rollback
rollback rate = rolled back / levels            same text: greedy, as plain decoding's
"""

from collections.abc import Iterable, Iterator
from functools import partial

from pipelines.applicability import NOT_APPLICABLE
from pipelines.measuring.names import CHAIN, HF_ASSISTED, HF_FORWARD, HF_PLAIN, LEARNED, PLAIN, chain_gamma
from pipelines.measuring.provenance import of_target_alone
from pipelines.report.comparison import PARTS, RATES, By, TimedArms, across, places
from pipelines.report.inputs import Inputs, Measured
from pipelines.report.plots import curves, picture
from pipelines.report.section import EFFICIENCY, OVER_CHAIN, SPEEDUP, Cell, Check, Section, Table, grid
from pipelines.report.text import GAIN, TIMES, arm_name, shown

NOTE = (
    "Intervals are 95 %, over documents. {prompts} held-out prompts of {documents} documents, decoded by every arm, interleaved. "
    "Every prompt weighs alike, while the gate weighs slices by their share."
)
SWEEP = "Speed-up over plain decoding by static draft length γ"


def section(inputs: Inputs) -> Section:
    """Make the section of the main arms; others have sections of their own."""
    whole, main = inputs.measured, inputs.measured.main
    exact, form = whole.exactness, whole.exact_format
    but = "exactly" if form == "float32" else "but for near-ties"
    exactly = f"; in {form} {sum(exact.values())} of {len(exact)} arms write Hugging Face's greedy text {but}"
    captions = {setting: setting + (exactly if main.greedy(setting) else "") for setting in main.settings}
    tables = [arm_table(main, setting, main.arms(setting), caption) for setting, caption in captions.items()]
    finding, pictures = f"Static chains are {NOT_APPLICABLE}.", []
    if not of_target_alone(main.origin):
        best = {setting: main.chosen(CHAIN, setting) for setting in main.settings}
        speeds = {setting: shown(main.speedup(arm, PLAIN, By(setting)), TIMES) for setting, arm in best.items()}
        said = ", ".join(f"{arm_name(arm)} {speeds[setting]} at {setting}" for setting, arm in best.items())
        finding = f"The best static chain, chosen on validation prompts, over plain decoding: {said}."
        chains = {gamma: (arm,) for arm in main.families if (gamma := chain_gamma(arm)) is not None}
        by_setting = across(partial(main.metric, SPEEDUP), {setting: By(setting) for setting in main.settings})
        sweep = grid("static draft length γ (tokens)", chains, by_setting, SWEEP, unit=TIMES)
        pictures = [picture("sweep", SWEEP, curves, [sweep])]
    tables += [_slices(main), *(_parts(whole, setting) for setting in whole.settings)]
    count = {"prompts": main.test["prompt"].nunique(), "documents": main.test["document"].nunique()}
    notes = [NOTE.format(**count), *main.findings["notes"]]
    return Section("speed", "How fast", finding, tables, pictures, notes, checks=[*_checks(main)])


def arm_table(compared: TimedArms, setting: str, arms: Iterable[str], caption: str) -> Table:
    """Speeds and counts of arms at a sampling setting; those that validation prompts chose are marked."""

    def same(arm: str, by: By) -> Cell:
        equal = compared.rows(arm, by)["equals_plain"].dropna()
        return f"{int(equal.sum())}/{len(equal)}" if len(equal) else None

    columns = {
        "tokens/s": lambda arm, by: compared.rate(arm, "tokens", "seconds", by)["value"],
        **compared.metrics(SPEEDUP, OVER_CHAIN, EFFICIENCY, "m_incl", "drafted per round", "rollback rate"),
        "same text": same,
    }
    chosen = set(map(arm_name, compared.choices(setting).values()))
    return grid("arm", places(arms, By(setting)), columns, caption, marked=chosen)


def _slices(main: Measured) -> Table:
    choices = {family for setting in main.settings for family in main.choices(setting)} - {CHAIN}
    learned = [arm for arm, family in main.families.items() if family == LEARNED]
    rows = {arm_name(arm): (arm,) for arm in [*sorted(choices), *learned]}
    columns = across(partial(main.metric, OVER_CHAIN), {name: By(slice=name) for name in main.slices})
    return grid("arm", rows, columns, "Gain over the best static chain by slice, all sampling settings", unit=GAIN)


def _parts(measured: Measured, setting: str) -> Table:
    """Of every arm that stands for its family, branch-parallel ones too, the time by phase. Hugging Face's arms have none."""
    by, chosen, families = By(setting), measured.choices(setting), measured.families
    arms = [arm for arm in measured.arms(setting) if chosen.get(families[arm], arm) == arm]
    timed = [arm for arm in arms if not measured.rows(arm, by)["rounds"].isna().any()]
    columns = measured.metrics("ms/token") | {
        part: lambda arm, by, part=part: measured.rate(arm, *RATES[part], by)["value"] for part in PARTS
    }
    return grid("arm", places(timed, by), columns, f"Where the time goes, {setting}")


def _checks(main: Measured) -> Iterator[Check]:
    for setting in main.settings:
        assisted = 1.0 if main.greedy(setting) else 1.1
        for arm, other, bar in ((PLAIN, HF_PLAIN, 1.15), (CHAIN, HF_ASSISTED, assisted), (PLAIN, HF_FORWARD, 1.0)):
            ratio = main.speedup(arm, other, By(setting))
            if ratio["value"] is not None:
                yield Check(f"{arm_name(arm)} over {arm_name(other)}, {setting}", ratio, bar)
