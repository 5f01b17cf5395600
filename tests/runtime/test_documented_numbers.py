"""The numbers of docs/verification.md that come from enumeration are what enumeration gives."""

import re
from pathlib import Path

import torch

from runtime.verification import VERIFIERS
from tests.runtime.test_multi_draft import HSD_VARIANTS
from tests.toys import TableModel
from tests.trees import continuation, delayed_trees, expected_length, rule_law

PAGE = (Path(__file__).parents[2] / "docs/verification.md").read_text()
ROWS = {
    "`block`, `hsd`": VERIFIERS["block"],
    "last test not capped": HSD_VARIANTS["last test not capped"],
    "c_t = min(1, r_t)": HSD_VARIANTS["capped at 1"],
    "c_t = r_t with": HSD_VARIANTS["not capped"],
    "c_t = r_t / max": HSD_VARIANTS["own position not capped"],
    "c_t capped at new maxima": HSD_VARIANTS["capped at new maxima, p replaced by 1 elsewhere"],
}


def test_readings_of_hierarchical_speculative_decoding():
    """Total variation and tokens per target pass over twelve pairs, drafts of three."""
    measured = {row: [] for row in ROWS}
    for seed in range(12):
        target, draft = TableModel(3, seed=100 + seed, sharpness=1.5), TableModel(3, seed=200 + seed, sharpness=1.0)
        trees = list(delayed_trees(draft, 1, 0, 3))
        own = continuation(target, (), 4)
        block = 1 + expected_length(trees, target, VERIFIERS["block"])
        for row, rule in ROWS.items():
            distance = 0.5 * float((rule_law(trees, target, rule, 4) - own).abs().sum())
            measured[row].append([distance, (1 + expected_length(trees, target, rule)) / block - 1])
    table = PAGE.split("<!-- enumerated: HSD variants -->")[1].split("<!-- end -->")[0]
    for row, values in measured.items():
        line = next(line for line in table.splitlines() if line.startswith(f"| {row}"))
        cells = [float(number) for cell in line.split("|")[2:4] for number in re.findall(r"[+-]?\d+(?:\.\d+)?", cell)]
        distance, gain = torch.tensor(values, dtype=torch.float64).T
        expected = [float(distance.mean()), float(distance.max()), 100 * float(gain.mean())]
        if row == "`block`, `hsd`":
            assert max(expected) < 1e-12 and cells == [0]
            continue
        assert [round(expected[0], 3), round(expected[1], 3)] == cells[:2], (row, expected)
        assert round(expected[2], 1) == cells[2], (row, expected)
