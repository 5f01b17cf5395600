"""Sections of what was timed: the main arms, rules that stop drafting, branch-parallel decoding, methods without a draft model.

Every table has a row for each arm that stands for its family (`TimedArms.standing`), after the best static chain; the main
one has all arms. What its columns are says `pipelines.report.comparison`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pipelines.measuring import names
from pipelines.measuring.names import CHAIN, HF_LOOKUP, HF_PLAIN, PLAIN
from pipelines.measuring.provenance import of_target_alone
from pipelines.outputs import NOT_APPLICABLE
from pipelines.report.comparison import EFFICIENCY, OVER_CHAIN, PARTS, SAME, SPEEDUP, By, TimedArms
from pipelines.report.inputs import Inputs
from pipelines.report.section import Interval, Picture, Section, Table, Unit, arm_name, shown, winners

MAIN = {names.PLAIN_FAMILY, names.HUGGING_FACE, names.LEARNED, CHAIN, names.CONFIDENCE, names.ENTROPY, names.LOOKUP}
MAIN |= {names.TAKEOVER, names.SELECTOR}  # families without a section of their own
LOOKUP = "over HF prompt lookup"
COLUMNS = ("tokens/s", SPEEDUP, OVER_CHAIN, EFFICIENCY, "m_incl", "drafted per round", "rollback rate", SAME)
NOTE = (
    "Intervals are 95 %, over documents. {prompts} held-out prompts of {documents} documents, decoded by every arm, interleaved. "
    "Every prompt weighs alike, while the gate weighs slices by their share."
)
VIRTUAL = (
    "Times of methods that ran one model after the other (overlap none) are a virtual clock's: of a pass and the drafting "
    "during it only the longer counts. That is an estimate, not a measured speed-up."
)


class Kind(NamedTuple):
    """Arms with a section of their own: those of ``families``, compared in the finding by ``columns[0]``; ``context``: arms that
    are shown besides."""

    title: str
    families: Sequence[str]
    columns: Sequence[str]
    note: str
    context: Sequence[str] = ()


KINDS = {
    "branches": Kind(
        "Drafting while the target verifies",
        names.BRANCH_PRESETS,
        (OVER_CHAIN, SPEEDUP, EFFICIENCY, "target idle", "rollback rate", "hits per branch point"),
        "These methods draft on while the target verifies; what follows a rejected token is rolled back. The static chain and "
        "SpecBranch without branches are sequential. Target idle: the target's waiting in rounds after a hit.",
    ),
    "stopping": Kind(
        "When to stop drafting",
        (names.RULE, names.CONFIDENCE, names.ENTROPY, names.DYNAMIC, names.FORK, names.CONFIG),
        (OVER_CHAIN, "drafted per round", EFFICIENCY, "deciding"),
        "Every drawn token is verified: no rule changes the output. A fork named after a model stops where that model rejects "
        "every path. A rule that was bypassed in every round is left out.",
    ),
    "self_drafting": Kind(
        "Without a draft model",
        (names.CALIBRATED, names.GIVEN),
        (SPEEDUP, LOOKUP, "tokens per pass", "passes with candidates", "guesses and candidates per pass", "upkeep"),
        "The target drafts for itself. Besides the newest token every pass runs over guesses, which grow by what it predicts "
        "after them, and over candidates from earlier guesses, which it verifies. Tokens per pass over the speed-up: what a "
        "pass costs in passes of plain decoding. Upkeep: time spent on candidates, guesses and pool.",
        (HF_LOOKUP, HF_PLAIN),
    ),
}


def main(inputs: Inputs) -> Section:
    """Make the section of the main arms, and of where the time of all goes; Hugging Face's arms have no phases."""
    measured, finding = inputs.measured, f"Static chains are {NOT_APPLICABLE}."
    families, alone = measured.families, of_target_alone(measured.origin)
    shown_families = MAIN | {names.CALIBRATED} if alone else MAIN
    arms = {arm for arm, family in families.items() if family in shown_families or arm == names.ENTROPY} - {HF_LOOKUP}
    tables, parts = [], []
    for setting in measured.settings:
        by, chosen = By(setting), measured.choices(setting)
        timed = [arm for arm in measured.arms(setting) if arm in arms]
        tables.append(measured.table(timed, COLUMNS, by, marked=chosen.values()))
        with_rounds = [arm for arm in measured.standing(setting) if measured.rows(arm, by)["rounds"].notna().all()]
        parts.append(measured.table(with_rounds, ("ms/token", *PARTS), by, f"Where the time goes, {setting}"))
    if not alone:
        best = {setting: measured.chosen(CHAIN, setting) for setting in measured.settings}
        speeds = {one: shown(measured.speedup(arm, PLAIN, By(one)), Unit.TIMES) for one, arm in best.items()}
        said = ", ".join(f"{arm} {speeds[setting]} at {setting}" for setting, arm in best.items())
        finding = f"The best static chain, chosen on validation prompts, over plain decoding: {said}."
    tuned = {family for setting in measured.settings for family in measured.choices(setting)} & shown_families
    sliced = [*sorted(tuned - {CHAIN}), *(arm for arm in families if families[arm] == names.LEARNED)]
    tables += [measured.by_slice(OVER_CHAIN, sliced, "Gain over the best static chain by slice, all settings"), *parts]
    count = {"prompts": measured.test["prompt"].nunique(), "documents": measured.test["document"].nunique()}
    exact, form = measured.exactness, measured.exact_format
    but = "exactly" if form == "float32" else "but for near-ties"
    exactly = f"In {form} {sum(exact.values())} of {len(exact)} arms write Hugging Face's greedy text {but}."
    notes = [NOTE.format(**count), exactly, *measured.findings["notes"]]
    return Section("speed", "How fast", finding, tables, notes=notes)


def of_kind(name: str, inputs: Inputs) -> Section | None:
    """Make the section of a kind of arms; ``None`` where none was timed that the main section does not show."""
    kind, measured = KINDS[name], inputs.measured
    made = {setting: arms for setting in measured.settings if (arms := _shown(measured, setting, kind))}
    if MAIN.issuperset(measured.families[arm] for arms in made.values() for arm in arms):
        return None
    first, tables, values, virtual = kind.columns[0], list[Table](), dict[str, Interval](), False
    bar, unit, base = (
        (1.0, Unit.TIMES, "plain decoding") if first == SPEEDUP else (0.0, Unit.GAIN, "the best static chain")
    )
    for setting, arms in made.items():
        by = By(setting)
        timed = [arm for arm in (CHAIN, *arms, *kind.context) if len(measured.rows(arm, by))]
        tables.append(measured.table(timed, kind.columns, by, marked={arm_name(CHAIN)}))
        virtual |= any(measured.rows(arm, by)["virtual"].any() for arm in arms)
        values |= {f"{arm} at {setting}": measured.metric(first, arm, by) for arm in arms}
    by_slice = [measured.by_slice(first, arms, f"By slice, {setting}", setting) for setting, arms in made.items()]
    finding = f"Surely over {base}{', on the virtual clock' * virtual}: {winners(unit, bar, values)}."
    label = SPEEDUP if unit == Unit.TIMES else "gain over the best static chain, %"
    pictures = [Picture(name, f"{first.capitalize()}.", tables, [first], label, bar)]
    return Section(
        name, kind.title, finding, [*tables, *by_slice], pictures, [kind.note, *([VIRTUAL] if virtual else [])]
    )


def _shown(measured: TimedArms, setting: str, kind: Kind) -> list[str]:
    """Arms of a kind, family by family; none that was bypassed in every round."""
    place = {family: number for number, family in enumerate(kind.families)}
    arms = [arm for arm in measured.standing(setting) if measured.families[arm] in place]
    rows = {arm: measured.rows(arm, By(setting)) for arm in arms}
    kept = [arm for arm in arms if rows[arm]["bypassed"].sum() < rows[arm]["rounds"].sum()]
    return sorted(kept, key=lambda arm: (place[measured.families[arm]], arm))
