"""What the tables of decodes and rounds say, counted by hand, and what they refuse."""

import pytest

from pipelines.measuring.arms import Run
from pipelines.measuring.decode_rows import measured, rounds_of, uncut_histogram
from pipelines.measuring.tables import DECODES, ROUNDS, read_decodes, read_rounds, write_decodes, write_rounds
from predictors.rounds import RoundRecord
from runtime import ModelPair, Randomness, build_decoder
from tests.toys import TableModel

WHERE = {"split": "test", "prompt": "p", "temperature": 0.0, "repeat": 0, "block": "test/p/T=0/0"}


def chains(*rounds):
    return [RoundRecord(drafted=drafted, accepted=accepted) for drafted, accepted in rounds]


@pytest.mark.parametrize(
    ("rounds", "uncut"),
    [
        ([], [0]),
        ([(0, 0), (0, 0)], [2]),  # plain decoding
        ([(3, 0), (3, 3), (3, 1), (3, 3)], [1, 1, 0, 2]),
        ([(3, 0), (3, 2), (3, 0), (1, 1)], [2, 0, 1, 0]),  # the budget cuts the last round of a static chain
        ([(3, 1), (3, 1), (0, 0)], [0, 2, 0, 0]),
        ([(2, 0), (4, 1), (1, 1), (4, 0)], [1, 1, 0, 0, 0]),  # a controller's lengths: the longest counts
    ],
)
def test_uncut_rounds_are_those_that_drafted_as_much_as_any(rounds, uncut):
    assert uncut_histogram(chains(*rounds)) == uncut


def test_a_tree_is_as_long_as_its_levels_not_as_its_nodes():
    rounds = [
        RoundRecord(drafted=6, levels=3, accepted=2),
        RoundRecord(drafted=4, levels=3, accepted=1),  # rollouts met
        RoundRecord(drafted=6, levels=2, accepted=2),  # cut short
    ]
    assert uncut_histogram(rounds) == [0, 1, 1, 0]


@pytest.fixture
def run():
    """A prefill, a tree of 6 nodes on 3 levels, a chain of 2 that a model was asked about, a last round of 1."""
    tree = {"drafted": 6, "levels": 3, "accepted": 1, "rolled_back": 2, "emitted": 2, "passes": 3}
    chain = {"drafted": 2, "accepted": 2, "emitted": 3, "passes": 3, "asked": 2, "bypassed": True}
    seconds = {"draft": 3.0, "target": 4.0, "verify": 1.0, "controller": 0.5}
    made = [{"emitted": 1}, tree, chain, {"drafted": 1, "rolled_back": 1, "emitted": 1, "passes": 1}]
    return Run([5] * 7, [RoundRecord(**counts, seconds=dict(seconds)) for counts in made])


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
    assert rounds_of(Run([1], None), 10) == []


def test_the_target_verifies_the_block_not_what_was_drafted_beside_it():
    record = RoundRecord(drafted=9, levels=5, idle_levels=2, submitted=2, candidates=2, concurrent=True)
    (_, row) = rounds_of(Run([1], [RoundRecord(), record]), 4)
    assert (row["nodes"], row["submitted"], row["drafted"], row["candidates"]) == (2, 2, 9, 2)


def test_tables_come_back_as_they_were_written(tmp_path, run):
    who = {"pair": "toy", "family": "chain", "verifier": "block", "slice": "code", "document": "d"}
    row = who | WHERE | {"prompt_tokens": 10, "order": 1, "seed": 2**40}
    unknown = row | {"arm": "hf_generate", **measured(Run([5] * 7, None), 9.0)}
    plain = row | {"arm": "autoregressive", **measured(Run([5] * 6 + [1], run.rounds), 9.0)}
    sampled = row | {"arm": "chain-3", "temperature": 1.0, **measured(run, 40.0)}
    write_decodes(tmp_path / "d.parquet", [row | {"arm": "chain-3", **measured(run, 40.0)}, unknown, plain, sampled])
    read = read_decodes(tmp_path / "d.parquet")
    assert [set(row) for row in read] == [set(DECODES.names)] * 4
    assert [row["equals_plain"] for row in read] == [False, False, True, None]
    assert read[0]["seed"] == 2**40 and read[0]["output"] == [5] * 7 and read[0]["uncut_histogram"] == [0, 1, 0, 0]
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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounds_of_real_decoders_add_up_to_their_decodes(temperature):
    pair = ModelPair(TableModel(6, seed=1, sharpness=3), TableModel(6, seed=1, sharpness=2.5))
    chain, fork = {"kind": "chain", "gamma": 3}, {"kind": "fork", "width": 3, "depth": 2}
    for config in (
        {"method": "autoregressive"},
        {"method": "speculative", "drafter": chain, "verifier": "block"},
        {"method": "speculative", "drafter": fork, "verifier": "traversal"},
        {"preset": "pearl", "gamma": 3, "overlap": "none"},
    ):
        out = build_decoder(pair, config).generate(
            [0, 1], max_new_tokens=40, temperature=temperature, randomness=Randomness(3)
        )
        row, rounds = measured(Run(out.tokens, out.rounds), 10.0), rounds_of(Run(out.tokens, out.rounds), 2)
        assert rounds[-1]["context"] + rounds[-1]["emitted"] == 2 + len(out.tokens) - 1
        for name in ("drafted", "levels", "submitted", "accepted", "emitted", "idle_levels"):
            assert sum(one[name] for one in rounds[1:]) == row[name]
        drafts = config["method"] != "autoregressive" if "method" in config else True
        assert all((one["passes"] > 0) == (one["drafted"] > 0) for one in rounds[1:])
        assert (sum(one["passes"] for one in rounds) > 0) == drafts
        assert sum(one["seconds_target"] for one in rounds) == pytest.approx(row["seconds_target"])
