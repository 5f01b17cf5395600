"""Decisions of heads driven through their values: exact on toy models in float64, and explicit lengths to the token."""

import itertools

import pytest
import torch

from predictors.bundle import read_bundle
from predictors.controllers.head import HRAD, HeadSession, Length
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, load_decoder
from runtime.audit.enumeration import total_variation
from runtime.audit.rounds import decoded_law
from runtime.audit.tables import TableModel, target_law
from runtime.branching.draft import BranchConfig
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig, ChainDraft
from runtime.drafting.drafted import DraftedTree
from runtime.tree import EMPTY_TREE, chain_tree
from runtime.verification import VERIFIERS
from tests.bundles import random_bundle
from tests.runtime.test_exactness import PROMPT
from tests.signals import SETTINGS
from tests.toys import tiny_llama

FEATURES = ("paper", "extended")


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


def length_bundle(folder, pair, features="extended", **options):
    return random_bundle(folder, pair, features, kind="length", **options)


def toys():
    return ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))


def scripted(controller, predict):
    """The controller with ``predict(root, law)``, a class, for a head."""
    num_classes = controller.num_classes

    def one_hot(root, law):
        return torch.nn.functional.one_hot(torch.tensor(predict(root, law)), num_classes).double(), 0.0, ()

    controller.predict, controller.layers = one_hot, ()
    return controller


def toy_decoder(controller, predict, gamma=2):
    """A decoder of float64 table models under a scripted head."""
    return SequentialDecoder(toys(), ChainConfig(gamma=gamma), VERIFIERS["block"], scripted(controller, predict))


def law_error(decoder, length=5):
    """Total variation of the decoder's output law from the target's own."""
    made = decoded_law(decoder, PROMPT, length, SETTINGS)
    return total_variation(made, target_law(decoder.pair.target, PROMPT, length, SETTINGS))


def all_a_head_may_see(root, law):
    return (root.position + (0 if law is None else int(law.confidence > 0.6))) % 3


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("kind", [HRAD, Length])
def test_output_law_with_the_decision_driven_through_its_values(pair, tmp_path, kind, features):
    """Decisions that depend on everything a head may see, on toy models in float64."""
    controller = kind(read_bundle(random_bundle(tmp_path / "b", pair, features, gamma=2, kind=kind.kind)))
    assert law_error(toy_decoder(controller, all_a_head_may_see)) < 1e-9


@pytest.mark.parametrize("retention", ["posterior", "prior"])
@pytest.mark.parametrize("features", FEATURES)
def test_output_law_beside_branches(pair, tmp_path, features, retention):
    """In the branch-parallel loop the length is also how much of a branch is kept, or how far branches are drafted."""
    controller = scripted(
        Length(read_bundle(length_bundle(tmp_path / "b", pair, features, gamma=2))), all_a_head_may_see
    )
    config = BranchConfig(gamma=2, k_max=1, k_rule="const", overlap="none", retention=retention)
    decoder = BranchParallelDecoder(toys(), config, VERIFIERS["block"], controller)
    settings = SamplingSettings(1.0)
    law = decoded_law(decoder, PROMPT, 5, settings)
    assert total_variation(law, target_law(decoder.pair.target, PROMPT, 5, settings)) < 1e-9


def test_a_length_that_saw_the_draft_is_noticed(pair, tmp_path, monkeypatch):
    """The wrong twin: the whole draft is drawn, and its length decided from what was drawn."""
    honest = ChainDraft.draft

    def draft(self, root, cap, session, clock):
        drafted = honest(self, root, cap, session, clock)
        tree, laws = drafted.tree, drafted.laws
        kept = next((place for place, token in enumerate(tree.token_list) if token == 2), len(laws))
        self._scratch = {node: place for node, place in self._scratch.items() if node < kept}
        if kept == 0:
            return DraftedTree(EMPTY_TREE, [])
        probs = torch.cat([tree.draft_probs[:kept], tree.draft_probs[-1:]])
        return DraftedTree(chain_tree(tree.tokens[:kept], probs), laws[:kept])

    controller = Length(read_bundle(length_bundle(tmp_path / "b", pair, "paper", gamma=2)))
    decoder = toy_decoder(controller, lambda root, law: 2)
    assert law_error(decoder, 4) < 1e-9
    monkeypatch.setattr(ChainDraft, "draft", draft)
    assert law_error(decoder, 4) > 1e-3


def tokens_and_passes(decoder, monkeypatch, rounds=12):
    """Drafted tokens and draft passes of each round."""
    passes, feed = [], ChainDraft._next_row
    monkeypatch.setattr(ChainDraft, "_next_row", lambda self, tokens: (passes.append(1), feed(self, tokens))[1])
    steps = decoder.stream(PROMPT, max_new_tokens=200, temperature=1.0, randomness=Randomness(0))
    found = []
    for step in itertools.islice(steps, 1, 1 + rounds):
        found.append((step.record.drafted, len(passes)))
        passes.clear()
    return found


@pytest.fixture
def in_turn_rounds(pair, tmp_path, monkeypatch):
    """Tokens and passes of lengths 0, 1, 2, 3, in the order of the rounds."""

    def run(features):
        lengths = itertools.cycle(range(4))
        controller = Length(read_bundle(length_bundle(tmp_path / "b", pair, features, gamma=3)))
        return tokens_and_passes(toy_decoder(controller, lambda root, law: next(lengths), gamma=3), monkeypatch)

    return run


@pytest.mark.parametrize(("features", "none"), [("paper", 0), ("extended", 1)])
def test_exactly_that_many_tokens_are_drafted_in_as_many_passes(in_turn_rounds, features, none):
    """Only reading the first law to decide on nothing costs a pass that drafts no token."""
    assert in_turn_rounds(features) == [(0, none), (1, 1), (2, 2), (3, 3)] * 3


def test_a_law_read_only_to_stop_is_noticed(in_turn_rounds, monkeypatch):
    monkeypatch.setattr(HeadSession, "stop_after", lambda self, drawn: False)
    assert in_turn_rounds("extended") == [(0, 1), (1, 2), (2, 3), (3, 3)] * 3


@pytest.mark.parametrize("features", FEATURES)
def test_the_rule_is_the_bundles(pair, tmp_path, features):
    """A head that sees none or all of three: the likeliest length drafts nothing, the expected value everything."""
    drafted = {}
    for choice in ("argmax", "expectation"):
        rule = {"choice": choice, "draft_cost": 0.1}
        decoder = load_decoder(length_bundle(tmp_path / choice, pair, features, gamma=3, rule=rule), pair)
        decoder.controller.predict = lambda root, law: (torch.tensor([0.5, 0.0, 0.0, 0.5]), 0.0, ())
        out = decoder.generate([1, 2, 3], max_new_tokens=30)
        drafted[choice] = {record.drafted for record in out.rounds[1:6]}  # none that the budget cuts
    assert drafted == {"argmax": {0}, "expectation": {3}}
