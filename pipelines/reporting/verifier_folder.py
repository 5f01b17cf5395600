"""A finished comparison of verification rules on one device as the reports read it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import PLAIN, PROVENANCE, TEST
from pipelines.measuring.verifiers.names import ACCEPTANCE, CHOICES, DECODING, ROOTS

FAMILY_NAMES = {
    "chain": "",
    "iid": "",
    "delayed": " (delayed)",
    "distinct": " (distinct)",
    "eleven": " (11 drafts)",
}
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
        """The shape that was best by ``measure`` on validation prompts."""
        return self.choices[measure, setting, *rule]

    def expected(self, setting: str, drafter: str, verifier: str) -> pd.DataFrame:
        """Items (one per root): amount = exact 1 + E[tau], cost = 1."""
        rows = _arm(self.roots, setting, drafter, verifier)
        return _items(rows, ["setting", "prompt", "root"], rows["expected"], 1.0)

    def decoded(self, setting: str, drafter: str, verifier: str) -> pd.DataFrame:
        """Items (one per prompt): amount = emitted tokens, cost = target passes, without the prefill round."""
        rows = _arm(self.decoding, setting, drafter, verifier)
        return _items(rows, ["setting", "prompt"], rows["emitted"], rows["rounds"])

    def timed(self, setting: str, drafter: str, verifier: str, phase: str | None = None) -> pd.DataFrame:
        """Items (one per prompt): amount = tokens, cost = seconds; with a phase: amount = its seconds, cost = all seconds."""
        rows = _arm(self.decoding, setting, drafter, verifier)
        return _items(rows, ["setting", "prompt"], rows["tokens"] if phase is None else rows[phase], rows["seconds"])

    def plain(self, setting: str) -> pd.DataFrame:
        """Items of plain decoding."""
        return self.timed(setting, PLAIN, PLAIN)


def read_comparison(folder: Path) -> VerifierComparison | None:
    """Read the folder of one device; ``None`` where there is no finished comparison."""
    if not (folder / PROVENANCE).is_file():
        return None
    tables = {name: pd.read_parquet(folder / name) for name in (ROOTS, DECODING, ACCEPTANCE)}
    test = {name: tables[name][tables[name]["split"] == TEST] for name in (ROOTS, DECODING)}
    record = json.loads((folder / CHOICES).read_text())
    choices = {(c["measure"], c["setting"], c["family"], c["verifier"]): c["drafter"] for c in record["choices"]}
    origin = json.loads((folder / PROVENANCE).read_text())
    return VerifierComparison(test[ROOTS], test[DECODING], tables[ACCEPTANCE], choices, record["capped"], origin)


def rule_name(rule: Rule) -> str:
    """A rule as a person reads it."""
    family, verifier = rule
    return verifier + FAMILY_NAMES.get(family, f" ({family})")


def _arm(table: pd.DataFrame, setting: str, drafter: str, verifier: str) -> pd.DataFrame:
    same = (table["setting"] == setting) & (table["drafter"] == drafter) & (table["verifier"] == verifier)
    return table[same]


def _items(rows: pd.DataFrame, index: list[str], amount: Any, cost: Any) -> pd.DataFrame:
    items = rows[[*index, "document", "slice"]].assign(amount=amount, cost=cost)
    return items.set_index(index).sort_index()
