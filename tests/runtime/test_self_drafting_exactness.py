"""One model that drafts for itself: the output law of the real decoder equals the model's own, by enumeration of every draw."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from predictors.rounds import hit_rate
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.enumeration import total_variation
from runtime.audit.rounds import Rounds, decoded_law
from runtime.audit.tables import TableModel, TableState, target_law
from runtime.decoding.single_model import SingleModelRun
from runtime.verification import VERIFIERS, Verifier
from runtime.verification.outcome import OutcomeLaw
from tests.ancestral import LlamaLogits
from tests.greedy import greedy_text
from tests.toys import tiny_llama

PROMPT = [1]
METHODS = [
    {"method": "progressive_tree"},
    {"method": "progressive_tree", "max_children": 2, "max_depth": 3, "pool_nodes": 5},
    {"method": "progressive_tree", "geometry": "paper"},
    {"method": "progressive_tree", "geometry": "paper", "max_children": 2, "max_depth": 2},
    {"method": "lookahead", "ngram": 3, "window": 3, "guesses": 2},
    {"method": "lookahead", "ngram": 3, "window": 2, "guesses": 1},
    {"method": "self_draft", "branches": 2, "length": 4, "ngram": 3, "guesses": 2},
]
SMALL = {"method": "progressive_tree", "max_children": 1, "max_depth": 2}
DRAWN = [SMALL | {"draft_top_k": 2}, SMALL | {"draft_top_k": 0, "draft_top_p": 0.7, "geometry": "paper"}]
LENGTH = 6


def decoder_law(pair, config, length, settings):
    return decoded_law(build_decoder(pair, config), PROMPT, length, settings)


def distance(pair, config, length, settings, reference=None):
    law = decoder_law(pair, config, length, settings)
    return total_variation(law, target_law(reference or pair.target, PROMPT, length, settings))


@pytest.mark.parametrize("config", METHODS, ids=str)
def test_output_law_is_the_models(config, monkeypatch):
    """And candidates are tried, kept and refused on the way, or the law would tell nothing."""
    decoder, settings = build_decoder(ModelPair(TableModel(3, seed=1)), config), SamplingSettings(1.0)
    rounds, after = [], Rounds.after

    def noted(self, held):
        for made in after(self, held):
            rounds.append(made[1].record)
            yield made

    monkeypatch.setattr(Rounds, "after", noted)
    law = decoded_law(decoder, PROMPT, LENGTH, settings)
    assert total_variation(law, target_law(decoder.pair.target, PROMPT, LENGTH, settings)) < 1e-9
    assert {record.accepted for record in rounds if record.levels == 2} >= {0, 1, 2}
    assert any(record.rolled_back for record in rounds)
    if config.get("guesses") != 1:
        assert any(record.drafted > record.levels for record in rounds), "a tree, not a chain"


@pytest.mark.parametrize("config", DRAWN, ids=str)
def test_guesses_may_be_drawn(config):
    assert distance(ModelPair(TableModel(3, seed=1)), config, 4, SamplingSettings(1.0)) < 1e-9


@pytest.mark.parametrize("config", [METHODS[0], METHODS[2], METHODS[4], METHODS[6]], ids=str)
@pytest.mark.parametrize(
    "settings", [SamplingSettings(0.7), SamplingSettings(1.0, top_k=2), SamplingSettings(0.8, top_p=0.6)], ids=str
)
def test_output_law_under_filters(config, settings):
    assert distance(ModelPair(TableModel(4, seed=5, zeros=True)), config, 5, settings) < 1e-9


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
@pytest.mark.parametrize("config", [METHODS[0], METHODS[2], METHODS[4], METHODS[6]], ids=str)
def test_output_law_of_a_tiny_llama(config, forward):
    target = tiny_llama(3, seed=0)
    reference = LlamaLogits(target)
    assert distance(ModelPair(target, forward=forward), config, 4, SamplingSettings(1.0), reference) < 1e-5


DEFAULTS = [
    *METHODS,
    {"method": "progressive_tree", "draft_top_k": 3},
    {"method": "lookahead"},
    {"method": "self_draft"},
]


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
@pytest.mark.parametrize("config", DEFAULTS, ids=str)
def test_greedy_text_is_the_models(config, forward):
    target = tiny_llama(8, seed=0)
    out = build_decoder(ModelPair(target, forward=forward), config).generate([1, 2, 3], max_new_tokens=50)
    assert out.tokens == greedy_text(target, [1, 2, 3], 50)
    assert sum(record.accepted for record in out.rounds) > 5


# ---- deliberately wrong twins: each must miss the model's law


def _instead(residual):
    """``match`` with another law of the token emitted where the path ends."""

    match = VERIFIERS["match"]

    def rule(tree, target_probs):
        law = match.rule(tree, target_probs)
        return OutcomeLaw(law.stop, law.depths, lambda row: residual(tree, target_probs, law, int(row)))

    return Verifier("wrong", rule, match.lossless_for)


def _one_hot(weights):
    return torch.nn.functional.one_hot(weights.argmax(), len(weights)).to(weights.dtype)


def _original(tree, target_probs, law, row):
    """The paper's algorithm taken literally: nothing accepted, so draw from P again."""
    return target_probs[row]


def _most_likely(tree, target_probs, law, row):
    """The public code: nothing accepted, so take the most likely of what is left."""
    return _one_hot(law.residual(row)) if tree.child_lists[row] else law.residual(row)


def _most_likely_at_leaves(tree, target_probs, law, row):
    return law.residual(row) if tree.child_lists[row] else _one_hot(target_probs[row])


@pytest.mark.parametrize("config", [METHODS[0], METHODS[2], METHODS[4], METHODS[6]], ids=str)
@pytest.mark.parametrize("wrong", [_original, _most_likely, _most_likely_at_leaves])
def test_biased_fallbacks_are_noticed(config, wrong, monkeypatch):
    monkeypatch.setitem(VERIFIERS, "match", _instead(wrong))
    assert distance(ModelPair(TableModel(3, seed=1)), config, 5, SamplingSettings(1.0)) > 1e-3


@pytest.mark.parametrize("config", [METHODS[0], METHODS[4], METHODS[6]], ids=str)
def test_a_second_draw_is_noticed(config, monkeypatch):
    """The newest token drawn once more where no candidate was hit."""
    honest = SingleModelRun._verdict

    def twice(self, tree, predicted, probs_MV):
        row, token = honest(self, tree, predicted, probs_MV)
        return honest(self, tree, predicted, probs_MV) if row == 0 and tree.num_nodes else (row, token)

    monkeypatch.setattr(SingleModelRun, "_verdict", twice)
    assert distance(ModelPair(TableModel(3, seed=1)), config, 5, SamplingSettings(1.0)) > 1e-3


# ---- what the loop feeds and records


SERVED = [{"method": "progressive_tree"}, {"method": "progressive_tree", "geometry": "paper"}]
SERVED += [{"method": "lookahead", "ngram": 3, "window": 4, "guesses": 3}, {"method": "self_draft"}]
each_method = pytest.mark.parametrize("config", SERVED, ids=str)


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
