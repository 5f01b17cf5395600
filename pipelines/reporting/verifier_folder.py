"""A finished comparison of verification rules on one device as the reports read it: exact expectations, and timed decodes.

Its decodes are those of the measurement's arms ``SHAPE RULE``, of families ``FAMILY RULE``; a static chain verified by block is
the arm ``chain-γ`` itself.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import PLAIN, PROVENANCE, TEST
from pipelines.measuring.verifiers.names import ACCEPTANCE, BLOCK_EFFICIENCY, CHOICES, ROOTS, TOKENS_PER_SECOND
from pipelines.reporting.measured_folder import Measured, setting_of, with_settings

FAMILY_NAMES = {
    "chain": "",
    "iid": "",
    "delayed": " (delayed)",
    "distinct": " (distinct)",
    "eleven": " (11 drafts)",
}
ARM = ["family", "drafter", "verifier"]
BLOCK = ["setting", "prompt", "repeat"]
Rule = tuple[str, str]  # family, verifier


@dataclass(frozen=True)
class VerifierComparison:
    """``roots`` and ``decoding`` of the test split, ``acceptance``, what was chosen, and ``origin`` (provenance)."""

    roots: pd.DataFrame
    decoding: pd.DataFrame
    acceptance: pd.DataFrame
    choices: dict[tuple[str, str, str, str], str]
    capped: bool
    origin: dict[str, Any]

    @property
    def settings(self) -> list[str]:
        """Sampling settings of the roots, in the order they were measured."""
        return [str(name) for name in self.roots["setting"].unique()]

    @property
    def timed_settings(self) -> list[str]:
        """Settings with timed decodes."""
        timed = set(self.decoding["setting"])
        return [name for name in self.settings if name in timed]

    @property
    def rules(self) -> list[Rule]:
        """(family, verifier) in the order of the tables."""
        pairs = self.roots[["family", "verifier"]].drop_duplicates()
        families = list(FAMILY_NAMES)
        return sorted(
            pairs.itertuples(index=False, name=None),
            key=lambda rule: families.index(rule[0]) if rule[0] in families else len(families),
        )

    def chosen(self, measure: str, setting: str, rule: Rule) -> str:
        """The shape that was best by ``measure`` on validation prompts; by exact block efficiency where they timed none."""
        exact = self.choices[BLOCK_EFFICIENCY, setting, *rule]
        return self.choices.get((measure, setting, *rule), exact)

    def expected(self, setting: str, drafter: str, verifier: str) -> pd.DataFrame:
        """Items (one per root): amount = exact 1 + E[tau], cost = 1."""
        rows = _arm(self.roots, setting, drafter, verifier)
        return _items(rows, ["setting", "prompt", "root"], rows["expected"], 1.0)

    def decoded(self, setting: str, drafter: str, verifier: str) -> pd.DataFrame:
        """Items (one per block): amount = emitted tokens, cost = target passes, without the prefill round."""
        rows = _arm(self.decoding, setting, drafter, verifier)
        return _items(rows, BLOCK, rows["emitted"], rows["rounds"])

    def timed(self, setting: str, drafter: str, verifier: str, phase: str | None = None) -> pd.DataFrame:
        """Items (one per block): amount = tokens, cost = seconds; with a phase: amount = its seconds, cost = all seconds."""
        rows = _arm(self.decoding, setting, drafter, verifier)
        return _items(rows, BLOCK, rows["tokens"] if phase is None else rows[phase], rows["seconds"])

    def plain(self, setting: str) -> pd.DataFrame:
        """Items of plain decoding, of all blocks with an arm of the comparison."""
        return self.timed(setting, PLAIN, PLAIN)


def read_comparison(folder: Path, measured: Measured) -> VerifierComparison | None:
    """What ``folder`` says of one device, with the decodes ``measured`` there; ``None`` where there is no finished comparison.

    Raises
    ------
    ValueError
        If none of its shapes and rules was timed.
    """
    if not (folder / PROVENANCE).is_file():
        return None
    roots, acceptance = (pd.read_parquet(folder / name) for name in (ROOTS, ACCEPTANCE))
    roots = roots[roots["split"] == TEST]
    timed = _timed(measured.decodes, roots)
    decoding = timed[timed["split"] == TEST]
    if decoding.empty:
        raise ValueError(
            f"no arm of {folder} was timed: give section measure an arm SHAPE RULE for each of its shapes."
        )
    record = json.loads((folder / CHOICES).read_text())
    choices = {(BLOCK_EFFICIENCY, c["setting"], c["family"], c["verifier"]): c["drafter"] for c in record["choices"]}
    choices |= _fastest(measured.findings["choices"], timed)
    capped = record["capped"] or measured.findings["capped"]
    return VerifierComparison(roots, decoding, acceptance, choices, capped, measured.origin)


def _timed(decodes: pd.DataFrame, roots: pd.DataFrame) -> pd.DataFrame:
    """Decodes of the roots' shapes and rules at the roots' settings, and plain decoding's of the same blocks."""
    rows = with_settings(decodes)
    rows = rows[rows["setting"].isin(roots["setting"].unique())]
    rows = rows.assign(drafter=_without_rule(rows, "arm"), family=_without_rule(rows, "family"))
    known = set(_plainly(roots[ARM].drop_duplicates()))
    own = rows[[arm in known for arm in _plainly(rows[ARM])]]
    plain = rows[(rows["arm"] == PLAIN) & rows["block"].isin(own["block"])]
    return pd.concat([own, plain.assign(verifier=PLAIN)])


def _without_rule(rows: pd.DataFrame, column: str) -> list[str]:
    """An arm's shape, or its family, without the rule that stands after it."""
    return [name.removesuffix(f" {rule}") for name, rule in _plainly(rows[[column, "verifier"]])]


def _fastest(choices: list[dict[str, Any]], timed: pd.DataFrame) -> dict[tuple[str, str, str, str], str]:
    """The shape that was fastest on validation prompts, by setting, family and rule, of those that are compared."""
    shapes = {arm: names for arm, *names in _plainly(timed[["arm", *ARM]].drop_duplicates())}
    found = {}
    for choice in choices:
        speeds = {arm: speed for arm, speed in choice["tokens_per_second"].items() if arm in shapes}
        if speeds:
            family, drafter, verifier = shapes[max(speeds, key=speeds.__getitem__)]
            found[TOKENS_PER_SECOND, setting_of(choice), family, verifier] = drafter
    return found


def rule_name(rule: Rule) -> str:
    """A rule as a person reads it."""
    family, verifier = rule
    return verifier + FAMILY_NAMES.get(family, f" ({family})")


def _plainly(rows: pd.DataFrame) -> Any:
    return rows.itertuples(index=False, name=None)


def _arm(table: pd.DataFrame, setting: str, drafter: str, verifier: str) -> pd.DataFrame:
    same = (table["setting"] == setting) & (table["drafter"] == drafter) & (table["verifier"] == verifier)
    return table[same]


def _items(rows: pd.DataFrame, index: list[str], amount: Any, cost: Any) -> pd.DataFrame:
    items = rows[[*index, "document", "slice"]].assign(amount=amount, cost=cost)
    return items.set_index(index).sort_index()
