"""Drafts of a lookup in the real loop: what is drafted, what the draft model reads, ends and budgets, what is refused."""

import pytest
import torch

from predictors.controllers.base import Sourced
from predictors.lookup import founds
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.drafting.chain import ChainDraft
from runtime.laws import processed_law
from tests.ancestral import LlamaLogits
from tests.branches import Scripted
from tests.greedy import greedy_text
from tests.runtime.graphing import Marked
from tests.runtime.lookups import CHOICES, lookup_decoder, mixed_decoder
from tests.runtime.test_graphed_decoding import pair as pair_of
from tests.runtime.test_graphed_decoding import reads_of
from tests.toys import near, tiny_llama

PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1, 5, 3, 1]
PERIOD = [2, 3, 4, 5, 6]
IN_TURN = [Sourced(3), Sourced(2, 2), None, Sourced(0, 0), Sourced(0, 3), Sourced(4), Sourced(4), None, Sourced(1, 3)]


@pytest.fixture(scope="module")
def models():
    """A target that repeats itself, and a draft that is sometimes right."""
    return tiny_llama(8, seed=0).double(), near(tiny_llama(8, seed=0), 0.1).double()


def in_turn():
    """One source after the other, round by round."""
    sources = iter(IN_TURN * 20)
    return lambda root: next(sources)


@pytest.mark.parametrize(
    ("path", "temperature"), [("hugging_face", 1.0), ("compact", 0.0), ("compact", 1.0), ("graphed", 1.0)]
)
def test_the_draft_model_has_read_all_that_it_draws_after(models, path, temperature):
    """Whatever the rounds before did: its distributions are those of the text, the looked-up tokens and those drawn so far."""
    assert drawn_wrongly(pair_of(models, path), models[1], temperature) < 1e-6


def test_a_model_that_reads_another_lookup_is_noticed(models, monkeypatch):
    honest = ChainDraft._feed_uncached
    monkeypatch.setattr(ChainDraft, "_feed_uncached", lambda self, then=(): honest(self, [0] * len(then)))
    assert drawn_wrongly(pair_of(models, "compact"), models[1], 1.0) > 1e-3


def drawn_wrongly(pair, draft, temperature):
    """The largest difference between what was drawn from and the draft's own distributions; and rounds are as chosen."""
    settings, reference = SamplingSettings(temperature), LlamaLogits(draft)
    decoder, text, worst = mixed_decoder(pair, in_turn(), gamma=5, length=4), list(PROMPT), 0.0
    options = {"max_new_tokens": 60, "temperature": temperature, "eos_token_id": []}
    sources = iter(IN_TURN * 20)
    for number, step in enumerate(decoder.stream(PROMPT, randomness=Randomness(5), observe=True, **options)):
        if number:
            tree, laws, record = step.evidence.tree, step.evidence.draft_laws, step.record
            found = step.evidence.root.found
            assert found == founds(text, 4)[-1]
            source = next(sources) if found.length else None
            left = len(PROMPT) + 60 - len(text) - 1
            looked_up = 0 if source is None else min(source.looked_up, len(found.tokens), left)
            drawn = 5 if source is None else source.drawn
            assert record.looked_up == looked_up and tree.token_list[:looked_up] == list(found.tokens[:looked_up])
            assert record.drafted == min(looked_up + drawn, 5, left) == looked_up + len(laws)
            assert record.passes == len(laws)
            for place, law in enumerate(laws, start=looked_up):
                expected = processed_law(reference.logits([*text, *tree.token_list[:place]]), settings)
                worst = max(worst, float((law.probs_V - expected).abs().max()))
                assert torch.equal(tree.draft_probs[place], law.probs_V)
            for place in range(looked_up):
                assert tree.draft_probs[place].nonzero().flatten().tolist() == [tree.token_list[place]]
                assert tree.draft_probs[place].sum() == 1
        text += step.tokens
    return worst


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_host_reads_once_a_round(temperature):
    recorded = pair_of([tiny_llama(9, seed=seed).double() for seed in (0, 1)], "graphed", Marked)
    decoder = mixed_decoder(recorded, in_turn(), gamma=5, length=4)
    assert max(reads_of(decoder, temperature)) == 1
    assert len(decoder.controller.session.roots) > 4


@pytest.mark.parametrize("choose", [in_turn(), lambda root: Sourced(2, 1), *list(CHOICES.values())[:5]])
def test_greedy_equality(choose):
    target, draft = tiny_llama(32, seed=0), tiny_llama(32, seed=0, layers=1)
    out = mixed_decoder(ModelPair(target, draft), choose, gamma=6, length=5).generate(PROMPT, max_new_tokens=40)
    assert out.tokens == greedy_text(target, PROMPT, 40)
    assert sum(record.emitted for record in out.rounds) == 40
    alone = lookup_decoder(ModelPair(target), length=6).generate(PROMPT, max_new_tokens=40)
    assert alone.tokens == out.tokens and sum(record.passes for record in alone.rounds) == 0


def scripted(text):
    return Scripted(text, len(PERIOD))


@pytest.mark.parametrize("length", [*range(1, 9), 24])
def test_a_periodic_text_is_looked_up(length):
    """All of what is looked up is accepted, at every budget."""
    text = PERIOD * 5
    decoder = lookup_decoder(ModelPair(scripted(text)), length=4, least=2)
    out = decoder.generate(PERIOD, max_new_tokens=length, eos_token_id=())
    assert out.tokens == text[:length]
    for record in out.rounds[2:]:  # the first token alone makes a match of one
        assert record.looked_up == record.drafted == record.accepted
    assert length < 24 or [record.drafted for record in out.rounds[1:]] == [0, 4, 4, 4, 4, 1]


@pytest.mark.parametrize("place", range(1, 10))
def test_an_end_of_sequence_token_ends_a_lookup(place):
    """It is in the prompt, and comes where the text has it."""
    prompt, text = [2, 3, 4, 9, 5, 6, 2, 3], [4, 3, 2, 4, 5, 2, 3, 4, 6, 2, 3, 4]
    text[place] = 9
    for decoder in (
        lookup_decoder(ModelPair(Scripted(text, 8)), length=5),
        mixed_decoder(
            ModelPair(Scripted(text, 8), Scripted(text, 8, (4,))), lambda root: Sourced(3, 2), gamma=6, length=5
        ),
    ):
        rounds = list(decoder.stream(prompt, max_new_tokens=12, eos_token_id=9, observe=True))
        assert [token for step in rounds for token in step.tokens] == text[: place + 1]
        for step in rounds[1:]:
            assert 9 not in step.evidence.tree.token_list[:-1]
    assert decoder.controller.session.roots[0].found.tokens[:2] == (9, 5)
    assert rounds[1].record.drafted == 1


def test_a_session_is_asked_only_where_something_was_found():
    decoder = mixed_decoder(ModelPair(scripted(PERIOD * 3), scripted(PERIOD * 3)), lambda root: Sourced(2), gamma=3)
    decoder.generate([7, 8, 0, 1], max_new_tokens=12, eos_token_id=())
    session = decoder.controller.session
    assert session.planned and session.roots and all(root.found.length for root in session.roots)
    assert session.planned + len(session.roots) == len(decoder.generate([7, 8, 0, 1], max_new_tokens=12).rounds) - 1


def test_a_controllers_plan_cuts_the_static_rule():
    config = {
        "method": "speculative",
        "drafter": {"kind": "lookup", "length": 4},
        "controller": {"kind": "fixed", "gamma": 2},
    }
    decoder = build_decoder(ModelPair(scripted(PERIOD * 5)), config)
    out = decoder.generate(PERIOD, max_new_tokens=20, eos_token_id=())
    assert out.tokens == (PERIOD * 5)[:20] and max(record.drafted for record in out.rounds) == 2


def test_drawing_without_a_draft_model_is_refused(models):
    with pytest.raises(ValueError, match='has no draft model. Use drafter {"kind": "chain", "lookup"'):
        lookup_decoder(ModelPair(models[0]), choose=lambda root: Sourced(1, 2)).generate(PROMPT, max_new_tokens=9)
