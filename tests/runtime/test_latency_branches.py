"""Cells of branches time what they say: real rounds over weightless models, from pass to pass."""

from itertools import count

import pytest
import torch

from runtime import ModelPair
from runtime.branching.candidates import Candidates
from runtime.latency import rounds as module
from runtime.latency.rounds import LEVELS, branch_decoder, endless, timed_branches, timed_verdicts
from runtime.latency.weightless import WeightlessModel, weightless_pair
from tests.runtime.test_pair_and_build import tokenizer
from tests.toys import tiny_llama


@pytest.fixture(scope="module")
def weightless():
    tiny = ModelPair(tiny_llama(64, seed=0), tiny_llama(64, seed=1, layers=1))
    return weightless_pair(tiny, 40, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_round_grows_as_many_branches_as_asked_and_drafts_nothing_idle(weightless, rows, temperature):
    stamps = []
    pair = ModelPair(weightless.target, stamped(weightless.draft, stamps))
    steps = endless(branch_decoder(pair, rows), temperature, 0)
    for _ in range(40):
        stamps.clear()
        record = next(steps).record
        assert record.idle_levels == 0
        assert record.levels == LEVELS + 2  # the candidates, the level timed with them, and the others
        assert record.drafted == rows * record.levels
        assert len(stamps) == LEVELS + 2  # the first pass is the branch point's
    assert record.drafted != rows * LEVELS


@pytest.mark.parametrize("sizes", [(64, 56), (56, 64)])
def test_embeddings_may_be_padded_to_different_sizes(sizes):
    """Qwen2.5's are."""
    words = tokenizer([f"w{i}" for i in range(48)])
    models = (tiny_llama(size, layers=1) for size in sizes)
    padded = ModelPair(*models, tokenizer=words, draft_tokenizer=words)
    pair = weightless_pair(padded, 40, torch.Generator().manual_seed(0))
    assert len(timed_branches(pair, 2, 1.0, 0)()) == 2
    assert all(timed_verdicts(pair, 2, temperature, 0)()[0] >= 0 for temperature in (0.0, 1.0))


def test_the_first_level_and_the_others_are_told_apart(weightless, monkeypatch):
    times = iter([10.0, 13.0, 14.0, 15.0, 16.5, 17.0])
    measure = timed_branches(weightless, 2, 1, 0)
    monkeypatch.setattr("runtime.latency.weightless.perf_counter", lambda: next(times))
    assert measure() == (3.0, 1.0)


def stamped(model, stamps):
    return WeightlessModel(model.logits_RV, model.programs, stamps)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("candidates", [1, 3])
def test_a_verdict_is_the_decoders_own_between_that_many_candidates(weightless, candidates, temperature, monkeypatch):
    measure, made = timed_verdicts(weightless, candidates, temperature, 0), []

    def draw(tried, target_V, chance):
        made.append((tried, target_V))
        return real(tried, target_V, chance)

    def place(tried, token):
        made.append((tried, torch.nn.functional.one_hot(torch.tensor(token), 64).float()))
        return look(tried, token)

    real, look = module.draw_at_branch_point, Candidates.place
    monkeypatch.setattr(module, "draw_at_branch_point", draw)
    monkeypatch.setattr(Candidates, "place", place)
    seconds = count(1)
    monkeypatch.setattr(module, "seconds_of", lambda work, device: (work(), float(next(seconds)))[1])
    assert [measure() for _ in range(3)] == [(1.0,), (2.0,), (3.0,)]
    assert len(made) == 3  # nothing but the verdict is timed, once a call
    for tried, target_V in made:
        assert len(set(tried.tokens.tolist())) == candidates
        assert tried.kind == ("rrs" if temperature else "match")
        assert float(target_V.sum()) == pytest.approx(1)
        assert (float(target_V.max()) == 1) == (temperature == 0)
    assert temperature == 0 or not torch.equal(made[0][1], made[1][1])
