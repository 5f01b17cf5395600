"""The loop in which one model drafts for itself: what it feeds, records and refuses."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from predictors.rounds import hit_rate
from runtime import ModelPair, Randomness, build_decoder
from runtime.decoding.single_model import SingleModelRun
from tests.greedy import greedy_text
from tests.toys import TableModel, TableState, tiny_llama

METHODS = [{"method": "progressive_tree"}, {"method": "progressive_tree", "geometry": "paper"}]
METHODS += [{"method": "lookahead", "ngram": 3, "window": 4, "guesses": 3}, {"method": "self_draft"}]
each_method = pytest.mark.parametrize("config", METHODS, ids=str)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(8))


@each_method
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_round_emits_what_it_accepts_and_one_more(pair, config, temperature):
    out = build_decoder(pair, config).generate(
        [1, 2, 3], max_new_tokens=60, temperature=temperature, randomness=Randomness(0)
    )
    rounds = out.rounds[1:]
    assert 0 < hit_rate(rounds) < 1
    assert all(record.emitted == record.accepted + 1 for record in rounds[:-1])
    assert sum(record.emitted for record in out.rounds) == 60
    for record in rounds:
        assert record.rolled_back == record.levels - record.accepted and record.levels <= record.drafted


@each_method
def test_candidates_and_guesses_do_not_see_each_other(config, monkeypatch):
    """Every row of a pass sees the text and its own path, as if it were alone."""
    passes = []
    honest = TableState.forward

    def forward(self, tokens, parents=None, last=None):
        out = honest(self, tokens, parents, last)
        if parents is not None:
            passes.append(([text[len(self.committed) :] for _, text in self.nodes], list(parents)))
        return out

    monkeypatch.setattr(TableState, "forward", forward)
    decoder = build_decoder(ModelPair(TableModel(5, seed=0)), config)
    steps = list(decoder.stream([1, 2], max_new_tokens=40, temperature=1.0, randomness=Randomness(0), observe=True))
    wide = 0
    for step, (texts, parents) in zip(steps[1:], passes, strict=True):
        candidates = 1 + step.record.drafted
        assert len(texts) == candidates + step.record.guessed
        tree = step.evidence.tree
        for node, text in enumerate(texts[1:candidates]):
            assert text[1:] == [tree.token_list[place] for place in tree.path(node + 1)]
        assert all(parent == 0 or parent >= candidates for parent in parents[candidates:])
        wide += candidates > 1 and step.record.guessed > 1
        assert step.evidence.target_probs.shape == (candidates, 5)
    assert wide > 5


@each_method
def test_a_models_context_may_be_filled_to_its_end(config, monkeypatch):
    """Learned positions: a guess beyond the context would have none."""
    torch.manual_seed(1)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40, "vocab_size": 8, "tie_word_embeddings": False}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    decoder = build_decoder(ModelPair(model), config)
    out = decoder.generate([1, 2, 3], max_new_tokens=37)
    assert out.tokens == greedy_text(model, [1, 2, 3], 37)
    assert any(record.accepted for record in out.rounds)
    monkeypatch.setattr(SingleModelRun, "_rows", lambda self: self.guesses.rows())
    with pytest.raises(IndexError):
        decoder.generate([1, 2, 3], max_new_tokens=37)


@each_method
def test_text_ends_at_the_end_of_sequence(pair, config):
    whole = build_decoder(pair, config).generate([1, 2, 3], max_new_tokens=40).tokens
    eos = whole[20]
    out = build_decoder(pair, config).generate([1, 2, 3], max_new_tokens=40, eos_token_id=eos)
    assert out.tokens == whole[: whole.index(eos) + 1]


@each_method
def test_requests_do_not_know_of_each_other(pair, config):
    """Guesses and pools live as long as their request."""
    decoder = build_decoder(pair, config)
    first, second = (
        decoder.generate([1, 2, 3], max_new_tokens=30, temperature=1.0, randomness=Randomness(3)) for _ in range(2)
    )
    assert first.tokens == second.tokens
    assert [record.drafted for record in first.rounds] == [record.drafted for record in second.rounds]


def test_a_draft_that_is_not_there_cannot_be_tapped(pair):
    with pytest.raises(ValueError, match="no draft model is there to tap"):
        build_decoder(pair, {"method": "lookahead"}).generate([1], draft_layers=(1,))
