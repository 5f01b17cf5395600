"""Drafts of a lookup, alone and before a chain: the enumerated output is the target's, unless the source is chosen late."""

import dataclasses
from functools import cache
from itertools import pairwise

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder
from runtime.audit.enumeration import enumerate_outcomes, total_variation
from runtime.audit.rounds import decoded_law
from runtime.audit.tables import TableModel, target_law
from runtime.drafting.chain import Chain, LookupDraft
from runtime.drafting.drafted import DraftedTree
from runtime.tree import DraftLaw, chain_tree
from runtime.verification import VERIFIERS
from tests.ancestral import LlamaLogits
from tests.runtime.lookups import CHOICES, PROMPT, lookup_decoder, mixed_decoder, toy_pair
from tests.toys import tiny_llama

RULES = [name for name, rule in VERIFIERS.items() if DraftLaw.IID in rule.lossless_for]
SAMPLED = SamplingSettings(1.0)
SETTINGS = [SAMPLED, SamplingSettings(0.7, top_k=2), SamplingSettings(1.0, top_p=0.7), SamplingSettings(0.0)]


def missed(decoder, settings=SAMPLED, length=4, target=None):
    """Total variation between the decoder's output and the target's own."""
    law = decoded_law(decoder, PROMPT, length, settings)
    return total_variation(law, expected(target or decoder.pair.target, settings, length))


@cache
def expected(target, settings, length):
    return target_law(target, PROMPT, length, settings)


PAIR = toy_pair()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("verifier", ["tokenwise", "block", "match"])
def test_a_lookup_alone(verifier, settings):
    alone = ModelPair(PAIR.target)
    for config in ({"length": 3}, {"length": 2, "longest": 1}, {"length": 3, "least": 2}):
        assert missed(lookup_decoder(alone, verifier, **config), settings) < 1e-9


@pytest.mark.parametrize("verifier", RULES)
def test_every_rule_for_chains_takes_lookups(verifier):
    assert missed(lookup_decoder(ModelPair(PAIR.target), verifier, length=2)) < 1e-9
    assert missed(mixed_decoder(PAIR, CHOICES["by_found"], verifier)) < 1e-9


@pytest.mark.parametrize("verifier", RULES)
def test_on_a_lookup_every_rule_is_the_point_mass_rule(verifier):
    target_RV = torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target_RV /= target_RV.sum(dim=1, keepdim=True)
    tokens_N = torch.tensor([2, 0, 1])
    certain_RV = torch.nn.functional.one_hot(torch.tensor([*tokens_N, 0]), 3).double()
    law = VERIFIERS[verifier](chain_tree(tokens_N, certain_RV), target_RV)
    reached = [1.0, *target_RV[range(3), tokens_N].cumprod(0).tolist(), 0.0]
    assert law.stop.tolist() == pytest.approx([one - next_ for one, next_ in pairwise(reached)], abs=1e-12)
    for row, token in enumerate(tokens_N):
        other_V = target_RV[row].index_fill(0, token, 0.0)
        assert law.residual(row).tolist() == pytest.approx((other_V / other_V.sum()).tolist(), abs=1e-9)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
def test_every_source(verifier, choice):
    assert missed(mixed_decoder(PAIR, CHOICES[choice], verifier)) < 1e-9


@pytest.mark.parametrize("settings", SETTINGS[1:], ids=str)
def test_sources_under_filters_and_other_draft_temperatures(settings):
    pair = toy_pair(4)
    for options in ({}, {"draft_temperature": 2.0}, {"draft_temperature": 0.0}):
        assert missed(mixed_decoder(pair, lambda root: CHOICES["by_past"](root), **options), settings) < 1e-9


@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
def test_longer_chains_and_impossible_tokens(verifier):
    pair = ModelPair(TableModel(3, seed=3, zeros=True), TableModel(3, seed=4, zeros=True))
    decoder = mixed_decoder(pair, lambda root: CHOICES["by_past"](root), verifier, gamma=3, agrees=True)
    assert missed(decoder, length=5) < 1e-9


def test_a_chain_may_stop_after_a_token_that_the_lookup_does_not_have():
    assert missed(mixed_decoder(PAIR, CHOICES["own"], agrees=True)) < 1e-9


@pytest.mark.parametrize("choice", ["then_drawn", "by_found"])
def test_tiny_llamas(choice):
    pair = ModelPair(tiny_llama(3, seed=0), tiny_llama(3, seed=1))
    decoder = mixed_decoder(pair, CHOICES[choice])
    assert missed(decoder, length=3, target=LlamaLogits(pair.target.model)) < 1e-5


def test_a_configured_lookup_alone():
    config = {"method": "speculative", "drafter": {"kind": "lookup", "length": 3}, "verifier": "match"}
    assert missed(build_decoder(ModelPair(PAIR.target), config)) < 1e-9


# ---- deliberately wrong twins


def with_trees(monkeypatch, change):
    """Drafts of a lookup whose tree is ``change(tree, laws)``."""
    honest = LookupDraft._drafted

    def changed(self, chain):
        drafted = honest(self, chain)
        return DraftedTree(change(drafted.tree, chain.laws), chain.laws, drafted.looked_up)

    monkeypatch.setattr(LookupDraft, "_drafted", changed)


def test_a_lookup_that_is_taken_for_a_draw_is_noticed(monkeypatch):
    """Its row as if its token came from the draft model's distribution after it."""

    def drawn(tree, laws):
        rows = [law.probs_V for law in laws[:1]]
        return dataclasses.replace(tree, draft_probs=torch.stack([*rows, *tree.draft_probs[1:]])) if rows else tree

    with_trees(monkeypatch, drawn)
    assert missed(mixed_decoder(PAIR, CHOICES["then_drawn"])) > 1e-3


def test_a_deterministic_chain_with_a_drawn_tail_wastes_tokens(monkeypatch):
    """The point-mass rule is exact whatever the tail was drawn from, and accepts it with p, not min(1, p / q)."""

    def emitted():
        """Expected tokens of the first round."""
        decoder = mixed_decoder(PAIR, CHOICES["then_drawn"])
        options = {"max_new_tokens": 4, "temperature": 1.0, "eos_token_id": ()}
        outcomes = enumerate_outcomes(lambda chance: decoder.generate(PROMPT, randomness=chance, **options).rounds[1])
        return sum(record.emitted * probability for record, probability in outcomes)

    honest = emitted()
    with_trees(monkeypatch, lambda tree, laws: dataclasses.replace(tree, draft_probs=None, law=DraftLaw.DETERMINISTIC))
    assert missed(mixed_decoder(PAIR, CHOICES["then_drawn"])) < 1e-9
    assert emitted() < honest - 0.01


@pytest.mark.parametrize("least_likely", [True, False])
def test_a_source_chosen_after_the_chain_was_drawn_is_noticed(monkeypatch, least_likely):
    """The lookup takes the place of a drawn chain that differs from it, or is not likely."""
    honest = LookupDraft.draft

    def swapped(self, root, cap, session, clock):
        drafted = honest(self, root, cap, session, clock)
        if not drafted.tree.num_nodes:
            return drafted
        first = drafted.tree.token_list[0]
        unlikely = float(drafted.laws[0].probs_V[first]) < 0.4
        if not (unlikely if least_likely else first != root.found.tokens[0]):
            return drafted
        self._model.commit([], [], [])
        return self.follow(root, CHOICES["looked_up"](root), cap, clock)

    monkeypatch.setattr(LookupDraft, "draft", swapped)
    assert missed(mixed_decoder(PAIR, CHOICES["own"])) > 1e-3


def test_a_chain_cut_where_the_lookup_differs_is_noticed(monkeypatch):
    """Cut before the token that differs, where keeping it would be exact."""
    honest = LookupDraft.draft

    def cut(self, root, cap, session, clock):
        drafted = honest(self, root, cap, session, clock)
        pairs = zip(drafted.tree.token_list, root.found.tokens, strict=False)
        kept = next((place for place, (token, other) in enumerate(pairs) if token != other), drafted.tree.num_nodes)
        scratch = self._model._scratch
        self._model._scratch = {node: place for node, place in scratch.items() if node < kept}
        chain = Chain(list(drafted.tree.tokens[:kept]), drafted.laws[:kept])
        return DraftedTree(chain.tree(), chain.laws)

    monkeypatch.setattr(LookupDraft, "draft", cut)
    assert missed(mixed_decoder(PAIR, CHOICES["own"])) > 1e-3
