"""What a benchmark's table says of rounds that draft beside the target: by hand, and of real decoders."""

from time import perf_counter

import pytest

from pipelines.measuring.arms import Run
from pipelines.measuring.decode_rows import measured, rounds_of
from pipelines.measuring.names import BRANCH_PRESETS, EXPLICIT, PAPER, PRIOR, BranchArm, branch_arm
from pipelines.measuring.tables import ROUNDS
from predictors.rounds import PHASES, RoundRecord, block_efficiency
from runtime import ModelPair, Randomness, build_decoder
from runtime.presets import PRESETS
from tests.toys import TableModel

PROMPT = [0, 1]
WORK = {"draft": 3.0, "target": 4.0, "verify": 1.0}


def branch_record(levels, idle, submitted, accepted, hit, **counts):
    place = {"ends_segment": not hit, "concurrent": True, "seconds": dict(WORK)}
    return RoundRecord(
        drafted=2 * levels, levels=levels, idle_levels=idle, submitted=submitted, accepted=accepted, **place, **counts
    )


@pytest.fixture
def records():
    """A prefill, a hit, a rejection in a steady round, an idle stage whose branch point is missed, a round without branches."""
    return [
        RoundRecord(seconds=dict(WORK), concurrent=True, emitted=1),
        branch_record(8, 4, 4, 5, hit=True, emitted=5, overlapped=2.0),
        branch_record(4, 0, 3, 2, hit=False, emitted=3, rolled_back=5, overlapped=1.0),
        branch_record(6, 2, 2, 2, hit=False, emitted=3, rolled_back=4),
        branch_record(1, 1, 1, 1, hit=False, emitted=2),
    ]


def test_counts_of_branch_rounds_by_hand(records):
    run = Run([0] * 14, records)
    row, rounds = measured(run, seconds=50.0), rounds_of(run, 3)[1:]
    assert (row["submitted"], row["idle_levels"], row["hits"]) == (10, 7, 1)
    assert (row["branch_points"], row["tested_points"]) == (3, 2)  # the last round drafted no branch
    names = ("levels", "drafted", "submitted", "idle_levels", "nodes")
    by_name = {name: [made[name] for made in rounds] for name in names}
    assert by_name["levels"] == [8, 4, 6, 1] and by_name["drafted"] == [16, 8, 12, 2]
    assert by_name["submitted"] == [4, 3, 2, 1] == by_name["nodes"] and by_name["idle_levels"] == [4, 0, 2, 1]
    assert (row["seconds_steady"], row["seconds_steady_wait"]) == (7.0, 2.0)  # the one round behind the hit


def test_virtual_seconds_leave_out_what_both_at_once_would_have_saved(records):
    row = measured(Run([0] * 14, records), seconds=50.0)
    assert row["virtual"] and row["overlapped"] == 3.0
    assert row["seconds"] == 47.0
    assert row["seconds_draft"] == 5 * 3.0 - 3.0
    parts = [row[f"seconds_{phase}"] for phase in PHASES]
    assert sum(parts) + row["seconds_rest"] == pytest.approx(47.0)
    assert row["seconds_rest"] == 50.0 - 5 * 8.0  # the loop's own time is not the clock's business
    hidden_work_left_in_the_draft = row["seconds"] - 5 * sum(WORK.values())
    assert hidden_work_left_in_the_draft == row["seconds_rest"] - 3.0  # the wrong twin takes it off twice


def test_a_run_is_virtual_if_it_says_so_or_if_something_overlapped():
    record = RoundRecord(seconds=dict(WORK))
    assert measured(Run([0], [record], virtual=True), 9.0)["virtual"]  # it ended with the prefill: nothing to overlap
    wall = measured(Run([0], [record]), 9.0)
    assert not wall["virtual"] and wall["seconds"] == 9.0 and wall["seconds_draft"] == 3.0
    unknown = measured(Run([0], None), 9.0)
    assert unknown["virtual"] is False and "levels" not in unknown


def test_arm_names_of_every_preset():
    assert set(BRANCH_PRESETS) - set(PRESETS) == {PAPER, PRIOR, EXPLICIT} and set(PRESETS) <= set(BRANCH_PRESETS)
    for preset in BRANCH_PRESETS:
        for lengths in ((12,), (4, 12)):
            arm = BranchArm(preset, lengths)
            assert branch_arm(arm.name) == arm
        assert branch_arm(f"{arm.family}-x") is None
    assert branch_arm("specbranch-no-hrad-8") == BranchArm("specbranch-no-hrad", (8,))
    assert [branch_arm(name) for name in ("chain-4", "pearl", "pearl-4-wall", "autoregressive")] == [None] * 4


@pytest.fixture(scope="module")
def pair():
    return ModelPair(TableModel(6, seed=1, sharpness=3), TableModel(6, seed=1, sharpness=2.5))


def decoders_of(pair):
    beside = {"gamma": 3, "overlap": "none"}
    return {
        "pearl-3": build_decoder(pair, {"preset": "pearl", **beside}),
        "specbranch-no-hrad-3": build_decoder(pair, {"preset": "specbranch-no-hrad", **beside}),
        "chain-3": build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}}),
    }


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["pearl-3", "specbranch-no-hrad-3"])
def test_table_of_real_branch_rounds_adds_up(pair, name, temperature):
    decoder = decoders_of(pair)[name]
    start = perf_counter()
    out = decoder.generate(PROMPT, max_new_tokens=60, temperature=temperature, randomness=Randomness(3))
    wall = perf_counter() - start
    row = measured(Run(out.tokens, out.rounds), wall)
    assert row["seconds"] + row["overlapped"] == pytest.approx(wall)
    assert 0 < row["overlapped"] < wall
    assert row["seconds_draft"] > 0 and row["seconds_rest"] >= -1e-9
    assert 0 < row["hits"] <= row["tested_points"] <= row["branch_points"] <= row["rounds"]
    assert row["hits"] + row["segments"] == row["rounds"]
    assert 0 < row["seconds_steady_wait"] < row["seconds_steady"] < row["seconds"]
    assert row["emitted"] / row["rounds"] == block_efficiency(out.rounds[1:])
    rounds = rounds_of(Run(out.tokens, out.rounds), len(PROMPT))[1:]
    assert len(rounds) == row["rounds"]
    for column in set(row) & set(ROUNDS.names) - {"overlapped"}:
        if not column.startswith("seconds"):
            assert sum(made[column] for made in rounds) == row[column], column
