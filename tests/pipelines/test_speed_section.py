"""Section ``speed``: mean accepted length, and the time by phase of every arm that stands for its family."""

import pytest

from pipelines.measuring.names import CHAIN
from pipelines.report.comparison import By
from pipelines.report.inputs import Inputs
from pipelines.report.speed import section
from tests.pipelines.hand_made_measured import MAIN_SPEED, decodes, write_measured

PHASES = ("draft", "target", "verify", "controller", "wait", "rest")
BRANCHING = {"pearl-2": 250, "pearl-4": 170, "specbranch-8": 240}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Branch-parallel arms accept 30 tokens in 30 rounds, of which 10 hit."""
    folder = tmp_path_factory.mktemp("speed")
    rows = decodes(MAIN_SPEED | BRANCHING, noise=0.0)
    rows = [row | {"accepted": 30, "segments": 20, "hits": 10} if row["arm"] in BRANCHING else row for row in rows]
    write_measured(folder / "measured" / "toy-1c", rows, chosen={CHAIN: "chain-3", "pearl": "pearl-4"})
    return Inputs(folder, "toy-1c")


def test_the_time_by_phase_has_branch_parallel_arms_too(inputs):
    parts = [table for table in section(inputs).tables if table.caption.startswith("Where the time goes")]
    assert [table.caption for table in parts] == ["Where the time goes, T=0", "Where the time goes, T=1"]
    for table in parts:
        rows = {row["arm"]: row for row in table.rows}
        assert {"plain decoding", "chain, γ=3", "PEARL γ=4", "SpecBranch γ=8", "H-RAD"} <= set(rows)
        assert not {"PEARL γ=2", "chain, γ=1", "HF generate"} & set(rows), "not chosen, or without records of rounds"
        for row in rows.values():
            assert sum(row[phase] for phase in PHASES) == pytest.approx(1)


def test_mean_accepted_length_counts_segments_not_rounds(inputs):
    """A round that hits goes on with its segment: over rounds the mean would be shorter."""
    for arm in BRANCHING:
        assert inputs.measured.metric("m_incl", arm, By("T=0")) == pytest.approx(1 + 30 / 20)
    assert inputs.measured.metric("m_incl", "autoregressive", By("T=0")) == 1
    assert "m_incl" in section(inputs).tables[0].filled
