"""Section ``speed``: the time by phase, of every arm that stands for its family."""

import pytest

from pipelines.reporting.inputs import Inputs
from pipelines.reporting.speed import section
from tests.pipelines.hand_made_branches import BRANCH_SPEED, branch_rows, write_branches

PHASES = ("draft", "target", "verify", "controller", "wait", "rest")


def test_the_time_by_phase_has_branch_parallel_arms_too(tmp_path):
    write_branches(tmp_path / "measured" / "toy-1c")
    made = section(Inputs(tmp_path, "toy-1c"))
    parts = [table for table in made.tables if table.caption.startswith("Where the time goes")]
    assert [table.caption for table in parts] == ["Where the time goes, T=0", "Where the time goes, T=1"]
    for table in parts:
        rows = {row["arm"]: row for row in table.rows}
        assert {"plain decoding", "chain, γ=3", "PEARL γ=4", "SpecBranch γ=8"} <= set(rows)
        assert not {"PEARL γ=2", "chain, γ=1", "HF generate"} & set(rows), "not chosen, or without records of rounds"
        for row in rows.values():
            assert sum(row[phase] for phase in PHASES) == pytest.approx(1)


def test_mean_accepted_length_counts_segments_not_rounds(tmp_path):
    """A round that hits goes on with its segment: over rounds the mean would be shorter."""
    rows = [row | {"family": "learned", "arm": "hrad"} for row in branch_rows() if row["arm"] == "pearl-4"]
    others = [row for row in branch_rows() if row["arm"] not in {"hrad", *BRANCH_SPEED}]
    write_branches(tmp_path / "measured" / "toy-1c", [*others, *rows])
    table = section(Inputs(tmp_path, "toy-1c")).tables[0]
    (row,) = (row for row in table.rows if row["arm"] == "H-RAD")
    assert row["m_incl"] == pytest.approx(1 + 30 / 20), "30 accepted tokens in 30 rounds, of which 10 hit"
