"""What the tables of decodes and rounds say, by hand and of real decoders, whose drafts may run beside the target."""

from time import perf_counter

import pytest

from pipelines.measuring.arms import ArmRun
from pipelines.measuring.names import BRANCH_PRESETS, EXPLICIT, PAPER, PRIOR, BranchArm, branch_arm
from pipelines.measuring.tables import (
    DECODES,
    ROUNDS,
    measured,
    read_decodes,
    read_rounds,
    rounds_of,
    write_decodes,
    write_rounds,
)
from predictors.rounds import PHASES, RoundRecord, block_efficiency
from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.tables import TableModel
from runtime.presets import PRESETS

WHERE = {"split": "test", "prompt": "p", "temperature": 0.0, "repeat": 0, "block": "test/p/T=0/0"}


def chains(*rounds):
    return [RoundRecord(drafted=drafted, accepted=accepted) for drafted, accepted in rounds]


TREE = [  # rollouts met in the second; the third was cut short
    RoundRecord(drafted=drafted, levels=levels, accepted=accepted)
    for drafted, levels, accepted in ((6, 3, 2), (4, 3, 1), (6, 2, 2))
]


@pytest.fixture
def run():
    """A prefill, a tree of 6 nodes on 3 levels, a chain of 2 that a model was asked about, a last round of 1."""
    tree = {"drafted": 6, "levels": 3, "accepted": 1, "rolled_back": 2, "emitted": 2, "passes": 3}
    chain = {"drafted": 2, "accepted": 2, "emitted": 3, "passes": 3, "asked": 2, "bypassed": True}
    seconds = {"draft": 3.0, "target": 4.0, "verify": 1.0, "controller": 0.5}
    made = [{"emitted": 1}, tree, chain, {"drafted": 1, "rolled_back": 1, "emitted": 1, "passes": 1}]
    return ArmRun([5] * 7, [RoundRecord(**counts, seconds=dict(seconds)) for counts in made])


def test_a_decode_sums_its_rounds_without_the_prefill(run):
    row = measured(run, 40.0)
    assert (row["rounds"], row["tried"], row["segments"], row["tokens"]) == (3, 3, 3, 7)
    assert (row["drafted"], row["levels"], row["submitted"]) == (9, 6, 6)
    assert (row["accepted"], row["emitted"], row["asked"], row["bypassed"]) == (3, 6, 2, 1)
    assert (row["seconds_draft"], row["seconds_target"], row["seconds_rounds"]) == (12.0, 16.0, 25.5)
    assert row["seconds_rest"] == 40.0 - 4 * 8.5


def test_rounds_say_what_they_were_made_of_and_what_was_cached(run):
    rounds = rounds_of(run, prompt_tokens=10)
    assert [row["prefill"] for row in rounds] == [True, False, False, False]
    assert [row["context"] for row in rounds] == [0, 10, 12, 15]  # the newest token is not cached: never 11, 13, 16
    assert [row["nodes"] for row in rounds] == [0, 6, 2, 1] and [row["levels"] for row in rounds] == [0, 3, 2, 1]
    assert [row["passes"] for row in rounds] == [0, 3, 3, 1] and [row["asked"] for row in rounds] == [0, 0, 2, 0]
    assert sum(row["emitted"] for row in rounds) == len(run.tokens)
    assert all(row["seconds_controller"] == 0.5 and row["seconds_wait"] == 0.0 for row in rounds)
    assert rounds_of(ArmRun([1], None), 10) == []


def test_the_target_verifies_the_block_not_what_was_drafted_beside_it():
    record = RoundRecord(drafted=9, levels=5, idle_levels=2, submitted=2, candidates=2, concurrent=True)
    (_, row) = rounds_of(ArmRun([1], [RoundRecord(), record]), 4)
    assert (row["nodes"], row["submitted"], row["drafted"], row["candidates"]) == (2, 2, 9, 2)


def test_tables_come_back_as_they_were_written(tmp_path, run):
    who = {"pair": "toy", "family": "chain", "verifier": "block", "slice": "code", "document": "d"}
    row = who | WHERE | {"prompt_tokens": 10, "order": 1, "seed": 2**40}
    unknown = row | {"arm": "hf_generate", **measured(ArmRun([5] * 7, None), 9.0)}
    plain = row | {"arm": "autoregressive", **measured(ArmRun([5] * 6 + [1], run.rounds), 9.0)}
    sampled = row | {"arm": "chain-3", "temperature": 1.0, **measured(run, 40.0)}
    write_decodes(tmp_path / "d.parquet", [row | {"arm": "chain-3", **measured(run, 40.0)}, unknown, plain, sampled])
    read = read_decodes(tmp_path / "d.parquet")
    assert [set(row) for row in read] == [set(DECODES.names)] * 4
    assert [row["equals_plain"] for row in read] == [False, False, True, None]
    assert read[0]["seed"] == 2**40 and read[0]["output"] == [5] * 7
    assert read[1]["rounds"] is None and read[1]["output"] == [5] * 7
    write_rounds(tmp_path / "r.parquet", [WHERE | {"arm": "chain-3", **row} for row in rounds_of(run, 10)])
    rounds = read_rounds(tmp_path / "r.parquet")
    assert set(rounds[0]) == set(ROUNDS.names)
    assert [row["round"] for row in rounds] == [0, 1, 2, 3] and rounds[2]["passes"] == 3


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="pases"):
        write_rounds(tmp_path / "r.parquet", [WHERE | {"arm": "chain-3", "pases": 3}])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="missing or damaged"):
        read_decodes(tmp_path / "none.parquet")
    write_rounds(tmp_path / "r.parquet", [])
    assert read_rounds(tmp_path / "r.parquet") == []
    with pytest.raises(ValueError, match="another version"):
        read_decodes(tmp_path / "r.parquet")


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
    run = ArmRun([0] * 14, records)
    row, rounds = measured(run, seconds=50.0), rounds_of(run, 3)[1:]
    assert (row["submitted"], row["idle_levels"], row["hits"]) == (10, 7, 1)
    assert (row["branch_points"], row["tested_points"]) == (3, 2)  # the last round drafted no branch
    names = ("levels", "drafted", "submitted", "idle_levels", "nodes")
    by_name = {name: [made[name] for made in rounds] for name in names}
    assert by_name["levels"] == [8, 4, 6, 1] and by_name["drafted"] == [16, 8, 12, 2]
    assert by_name["submitted"] == [4, 3, 2, 1] == by_name["nodes"] and by_name["idle_levels"] == [4, 0, 2, 1]
    assert (row["seconds_steady"], row["seconds_steady_wait"]) == (7.0, 2.0)  # the one round behind the hit


def test_virtual_seconds_leave_out_what_both_at_once_would_have_saved(records):
    row = measured(ArmRun([0] * 14, records), seconds=50.0)
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
    assert measured(ArmRun([0], [record], virtual=True), 9.0)[
        "virtual"
    ]  # it ended with the prefill: nothing to overlap
    wall = measured(ArmRun([0], [record]), 9.0)
    assert not wall["virtual"] and wall["seconds"] == 9.0 and wall["seconds_draft"] == 3.0
    unknown = measured(ArmRun([0], None), 9.0)
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


CHAIN = {"kind": "chain", "gamma": 3}
FORK = {"kind": "fork", "width": 3, "depth": 2}
DECODERS = {
    "plain": {"method": "autoregressive"},
    "chain": {"method": "speculative", "drafter": CHAIN, "verifier": "block"},
    "fork": {"method": "speculative", "drafter": FORK, "verifier": "traversal"},
    "pearl": {"preset": "pearl", "gamma": 3, "overlap": "none"},
    "specbranch": {"preset": "specbranch-no-hrad", "gamma": 3, "overlap": "none"},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", DECODERS)
def test_rounds_of_real_decoders_add_up_to_their_decodes(name, temperature):
    pair = ModelPair(TableModel(6, seed=1, sharpness=3), TableModel(6, seed=1, sharpness=2.5))
    options = {"max_new_tokens": 60, "temperature": temperature, "randomness": Randomness(3)}
    start = perf_counter()
    out = build_decoder(pair, DECODERS[name]).generate(PROMPT, **options)
    run, wall = ArmRun(out.tokens, out.rounds), perf_counter() - start
    row, (prefill, *rounds) = measured(run, wall), rounds_of(run, len(PROMPT))
    assert len(rounds) == row["rounds"]
    assert rounds[-1]["context"] + rounds[-1]["emitted"] == len(PROMPT) + len(out.tokens) - 1
    for column in set(row) & set(ROUNDS.names) - {"overlapped"}:
        if not column.startswith("seconds"):
            assert sum(made[column] for made in rounds) == row[column], column
    assert all((one["passes"] > 0) == (one["drafted"] > 0) for one in rounds)
    assert (sum(one["passes"] for one in rounds) > 0) == (name != "plain")
    assert sum(one["seconds_target"] for one in (prefill, *rounds)) == pytest.approx(row["seconds_target"])
    if "preset" in DECODERS[name]:
        assert row["seconds"] + row["overlapped"] == pytest.approx(wall)
        assert 0 < row["overlapped"] < wall and row["seconds_draft"] > 0 and row["seconds_rest"] >= -1e-9
        assert 0 < row["hits"] <= row["tested_points"] <= row["branch_points"] <= row["rounds"]
        assert row["hits"] + row["segments"] == row["rounds"]
        assert 0 < row["seconds_steady_wait"] < row["seconds_steady"] < row["seconds"]
        assert row["emitted"] / row["rounds"] == block_efficiency(out.rounds[1:])
