"""Section ``rules``: block efficiency of every verification rule on the same drafts, exact, from the labels of kind ``trees``.

    block efficiency    mean over test roots of E[emitted tokens of a step], given the trees sampled there
    difference          mean over the same roots of a rule's less that of a reference rule

Roots lie evenly along the text, while decoding starts a round where the last one ended: real rounds need not agree to the last
digit. Shape suffixes: N roots, K rules, A actions (chains and delayed trees).
"""

import numpy as np

from pipelines.applicability import absent
from pipelines.measuring.names import TEST
from pipelines.report.comparison import rate
from pipelines.report.inputs import Inputs
from pipelines.report.plots import picture, whiskers
from pipelines.report.section import EFFICIENCY, Row, Section, Table, column
from pipelines.report.text import NUMBER, Interval, highest, listed, surely_above
from predictors.training.labelling import TREES, read_labels
from predictors.training.tables import RootTable

REFERENCE = "traversal"  # or the first rule, where that was not traced
NOTE = (
    "Every rule is lossless. Expected tokens are exact given the drafted trees, and differences are paired by root: {roots} "
    "roots of {documents} held-out documents. delayed-k.l1.l2 is a trunk of l1 tokens, then k paths of l2. A rule is compared on "
    "all trees that branch; block verification takes chains alone."
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where no trees were labelled."""
    path, traces = inputs.data / "labels" / "trees.parquet", inputs.data / "traces" / "trees"
    if not path.is_file() or absent(traces):
        return None
    traced = RootTable.read(traces)
    roots = traced.labelled(read_labels(path, TREES, traced.manifest.content_hash)).rows(TEST)
    known = roots.manifest.rules
    reference = REFERENCE if REFERENCE in known else known[0]
    over = f"{EFFICIENCY} over {reference}"
    whole, each = [], []
    for place, setting in enumerate(roots.settings):
        here_N = roots.setting_N == place
        mean_NKA, documents = roots.mean_NKA[here_N], roots.column("document")[here_N]
        whole.append(Table(_rules(roots, mean_NKA, documents, reference, over), setting.name, {reference}, NUMBER))
        each.append(Table(_actions(roots, mean_NKA, documents), f"{setting.name}, by action", unit=NUMBER))
    gains = column(whole, over)
    sure = listed([name for name, gain in gains.items() if surely_above(gain)])
    finding = f"Surely more tokens a pass than {reference} on the same trees: {sure}; highest {highest(gains, NUMBER)}."
    caption = "Expected tokens of a target pass over the reference rule's, on all trees that branch."
    pictures = [picture("rules", caption, whiskers, whole, [over], over)]
    note = NOTE.format(roots=len(roots), documents=len(set(roots.column("document"))))
    return Section("rules", "Which verification rule", finding, [*whole, *each], pictures, [note])


def _rules(roots: RootTable, mean_NKA: np.ndarray, documents: np.ndarray, reference: str, over: str) -> list[Row]:
    """Every rule over all trees that branch and over all chains, and the paired difference on trees."""
    rules, chain_A = roots.manifest.rules, np.array([action.is_chain for action in roots.actions])
    tree_NK, chain_NK = (mean_NKA[:, :, kept_A].mean(axis=2) for kept_A in (~chain_A, chain_A))
    more_NK = tree_NK - tree_NK[:, [rules.index(reference)]]
    return [
        {
            "rule": rule,
            "on trees": _mean(tree_NK[:, place], documents),
            over: None if rule == reference else _mean(more_NK[:, place], documents),
            "on chains": _mean(chain_NK[:, place], documents),
        }
        for place, rule in enumerate(rules)
    ]


def _actions(roots: RootTable, mean_NKA: np.ndarray, documents: np.ndarray) -> list[Row]:
    """Every action under every rule."""
    return [
        {"action": action.name} | {rule: _mean(mean_NKA[:, place, one], documents) for place, rule in enumerate(rules)}
        for rules in [roots.manifest.rules]
        for one, action in enumerate(roots.actions)
    ]


def _mean(values_N: np.ndarray, documents: np.ndarray) -> Interval | None:
    """The mean over roots with its interval over documents; ``None`` where the rule does not take the drafts."""
    return rate(documents, values_N, np.ones(len(values_N))) if np.isfinite(values_N).all() else None
