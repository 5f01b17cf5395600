"""The delayed-tree selector in the decoder: exact whatever it chooses."""

import pytest

from predictors.actions import Action
from predictors.controllers import Controller, Session
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, load_decoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.trees import DelayedTreeConfig, DelayedTreeDraft
from runtime.verification import VERIFIERS
from tests.ancestral import target_law
from tests.bundles import ACTIONS, selector_bundle
from tests.runtime.test_exactness import PROMPT
from tests.selectors import chosen_trees, law_of, small_pair
from tests.toys import TableModel, total_variation

RULES = ("nss", "naive_tree", "spectr", "specinfer", "khisti", "traversal")
CHAINS = (Action(1, 1, 0), Action(1, 3, 0))


class Chooser(Controller):
    """The tree is ``rule(tree_root)``, without a network."""

    kind = "chooser"

    def __init__(self, rule, actions=ACTIONS):
        self.rule, self.actions = rule, actions

    def start(self, settings):
        return ChooserSession(self)


class ChooserSession(Session):
    def __init__(self, controller):
        self.controller = controller

    def tree(self, root):
        return self.controller.actions[self.controller.rule(root)]


@pytest.fixture(scope="module")
def pair():
    return small_pair()


def by_draft_law(root):
    """A rule that looks at everything it may: the draft's law at the root."""
    return int(4 * float(root.law.probs_V.max())) % len(ACTIONS)


def chooser_decoder(rule, verifier, seed=1):
    pair = ModelPair(TableModel(3, seed=seed), TableModel(3, seed=seed + 1))
    drafter = DelayedTreeConfig(1, 1, 0, choices=ACTIONS)
    return pair, SequentialDecoder(pair, drafter, VERIFIERS[verifier], Chooser(rule))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("verifier", RULES)
def test_output_law_whatever_is_chosen_from_the_root(verifier, temperature):
    pair, decoder = chooser_decoder(by_draft_law, verifier)
    settings = SamplingSettings(temperature)
    law = law_of(decoder, 4, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 4, settings)) < 1e-9


@pytest.mark.parametrize("verifier, lossless", [("spectr", False), ("khisti", False), ("specinfer", True)])
def test_a_choice_that_knows_the_first_token_is_biased(monkeypatch, verifier, lossless):
    """The wrong twin: a second candidate only where the first is token 0. Rules that need k in advance are lossy then, those that
    try one candidate after the other are not (specification of verification, section 9)."""
    draw = DelayedTreeDraft._draw

    def peeking(draft, depth, laws, copies):
        tokens = draw(draft, depth, laws, copies)
        return [tokens[0] if tokens[0][0] == 0 else tokens[0][:1]] if depth == 0 else tokens

    monkeypatch.setattr(DelayedTreeDraft, "_draw", peeking)
    pair, decoder = chooser_decoder(lambda root: 2, verifier)
    settings = SamplingSettings(1.0)
    distance = total_variation(law_of(decoder, 3, settings), target_law(pair.target, PROMPT, 3, settings))
    assert distance < 1e-9 if lossless else distance > 1e-3


def test_chains_alone_go_with_block_verification(pair, tmp_path):
    decoder = load_decoder(selector_bundle(tmp_path / "b", pair, CHAINS, "block"), pair)
    names = chosen_trees(decoder)
    rounds = decoder.generate([1, 2, 3], max_new_tokens=40, temperature=1.0, randomness=Randomness(0)).rounds[1:-1]
    assert set(names) == {"chain-1", "chain-3"}
    assert {record.levels for record in rounds} == {1, 3}
    with pytest.raises(ValueError, match=r"'block' takes chains only"):
        load_decoder(selector_bundle(tmp_path / "c", pair, ACTIONS, "block"), pair)


def test_the_choice_is_what_is_drafted(pair, tmp_path):
    decoder = load_decoder(selector_bundle(tmp_path / "b", pair), pair)
    names = chosen_trees(decoder)
    steps = list(decoder.stream([1, 2, 3], 60, temperature=1.0, randomness=Randomness(0), observe=True))[1:]
    assert len(set(names)) >= 3
    shapes = {action.name: action for action in ACTIONS}
    for name, step in zip(names[:-3], steps[:-3], strict=True):
        tree, action = step.evidence.tree, shapes[name]
        assert max(tree.depths) == action.depth
        assert len(tree.draws) == action.most_nodes
        assert len(tree.child_lists[0]) == (action.k if action.l1 == 0 else 1)
