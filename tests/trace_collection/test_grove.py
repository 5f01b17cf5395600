"""Labels of root traces: what is read off one grove is what real decoding emits at every single action."""

import dataclasses

import pytest
import torch

from predictors.actions import Action
from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder
from runtime.audit.enumeration import enumerate_outcomes
from runtime.audit.tables import TableModel
from runtime.laws import processed_law
from trace_collection.efficiency import Drawn, Efficiencies
from trace_collection.grove import Extent, Grove

ACTIONS = (Action(1, 1, 0), Action(1, 2, 0), Action(2, 0, 1), Action(2, 1, 1))
DEEP = (Action(1, 1, 0), Action(2, 0, 1), Action(2, 0, 2))
RULES = ("nss", "naive_tree", "spectr", "specinfer", "khisti", "traversal")
ROOT = [0, 1, 2]  # the newest token last
SETTINGS = SamplingSettings(1.0)


def tables(seed=1, eos=()):
    pair = ModelPair(TableModel(3, seed=seed), TableModel(3, seed=seed + 1))
    for model in (pair.target, pair.draft):
        model.eos_tokens = frozenset(eos)
    return pair


def grove_at_root(pair, actions, chance, samples=1):
    """A grove behind ``ROOT``, and the target's laws at the root and behind its nodes."""
    draft, target = pair.draft.open(20), pair.target.open(20)
    law_V = processed_law(draft.forward(ROOT, last=1).logits[-1], SETTINGS)
    draft.keep(range(len(ROOT)))
    grove = Grove(draft, law_V, Extent.of(actions), SETTINGS, pair.target.eos_tokens).draw(samples, chance)
    target.forward(ROOT[:-1])
    target.keep(range(len(ROOT) - 1))
    logits = target.forward([ROOT[-1], *grove.tokens], [-1, *(parent + 1 for parent in grove.parents)]).logits
    return grove, processed_law(logits, SETTINGS)


def expected_labels(pair, actions, rules):
    """E over all groves of the label of every rule and action."""
    total = 0.0
    for (grove, probs), probability in enumerate_outcomes(lambda chance: grove_at_root(pair, actions, chance)):
        total = total + probability * torch.from_numpy(Efficiencies(grove, probs, actions).array(rules)[0])
    return total


class FirstTokenIs:
    """Chance that forces the prefill's token and passes every other draw on."""

    def __init__(self, chance, token):
        self.chance, self.token, self.asked = chance, token, False

    def categorical(self, weights):
        if not self.asked:
            self.asked = True
            return torch.tensor(self.token)
        return self.chance.categorical(weights)


def expected_emitted(pair, action, rule):
    """E[emitted tokens] of the first round of real decoding behind ``ROOT``."""
    drafter = {"kind": "delayed_tree", **dataclasses.asdict(action)}
    decoder = build_decoder(pair, {"method": "speculative", "drafter": drafter, "verifier": rule})

    def one_round(chance):
        steps = decoder.stream(ROOT[:-1], 12, temperature=1.0, randomness=FirstTokenIs(chance, ROOT[-1]))
        next(steps)
        return len(next(steps).tokens)

    return sum(probability * emitted for emitted, probability in enumerate_outcomes(one_round))


@pytest.mark.parametrize("rule", RULES)
def test_labels_are_what_decoding_emits(rule):
    pair = tables()
    labels = expected_labels(pair, ACTIONS, [rule])[0]
    decoded = [expected_emitted(pair, action, rule) for action in ACTIONS]
    assert labels.tolist() == pytest.approx(decoded, abs=1e-9)


@pytest.mark.parametrize("rule", ["specinfer", "traversal"])
def test_cut_trees_are_what_decoding_emits(rule):
    """One set of rollouts serves two depths."""
    pair = tables(seed=5)
    labels = expected_labels(pair, DEEP, [rule])[0]
    assert labels.tolist() == pytest.approx([expected_emitted(pair, action, rule) for action in DEEP], abs=1e-9)


@pytest.mark.parametrize("rule", ["nss", "specinfer", "traversal"])
def test_texts_that_may_end(rule):
    """No bonus token behind an accepted end, and nothing is drafted behind it."""
    pair = tables(seed=3, eos=[0])
    labels = expected_labels(pair, ACTIONS, [rule])[0]
    assert labels.tolist() == pytest.approx([expected_emitted(pair, action, rule) for action in ACTIONS], abs=1e-9)


def test_block_verification_takes_chains_only():
    pair = tables()
    labels = expected_labels(pair, ACTIONS, ["block"])[0]
    chains = [expected_emitted(pair, action, "block") for action in ACTIONS[:2]]
    assert labels[:2].tolist() == pytest.approx(chains, abs=1e-9) and labels[2:].isnan().all()


def test_counting_trunk_edges_as_often_as_rollouts_is_wrong(monkeypatch):
    """The trap of section 7: a trie of the whole paths draws the trunk K times."""
    drawn = Efficiencies.drawn

    def whole_paths(self, sample, action):
        trunk, *others = drawn(self, sample, action).contexts
        return Drawn([], ((trunk[0], trunk[1] * action.k), *others), 0, 0)

    monkeypatch.setattr(Efficiencies, "drawn", whole_paths)
    pair, tree = tables(), Action(2, 1, 1)
    labels = expected_labels(pair, (tree,), ["spectr"])[0]
    assert abs(float(labels[0]) - expected_emitted(pair, tree, "spectr")) > 1e-5


def test_samples_are_independent_and_share_nodes():
    pair = tables()
    single = expected_labels(pair, ACTIONS[:3], ["traversal"])[0].tolist()
    total, shared = [0.0, 0.0], 0
    small = (Action(1, 1, 0), Action(2, 0, 1))
    for (grove, probs), probability in enumerate_outcomes(lambda chance: grove_at_root(pair, small, chance, samples=2)):
        labels = Efficiencies(grove, probs, small).array(["traversal"])
        for place in range(2):
            total[place] = total[place] + probability * torch.from_numpy(labels[place, 0])
        assert len(set(zip(grove.parents, grove.tokens, strict=True))) == len(grove.tokens), "a node is held once"
        shared += len(grove.tokens) < 6
    assert shared
    for place in range(2):
        assert total[place].tolist() == pytest.approx([single[0], single[2]], abs=1e-9)


def test_nodes_are_counted_as_they_are_fed_and_verified():
    pair, deep = tables(), (Action(1, 2, 0), Action(3, 1, 2))
    seen = set()
    for (grove, probs), _ in enumerate_outcomes(lambda chance: grove_at_root(pair, (Action(2, 0, 2),), chance)):
        nodes, fed = Efficiencies(grove, probs, (Action(2, 0, 2), Action(2, 0, 1))).traffic()
        below = {path.nodes[0] for path in grove.samples[0].rollouts[0]}
        assert nodes[0] == len(grove.tokens) - len(
            set(grove.samples[0].trunk.nodes) - {n for p in grove.samples[0].rollouts[0] for n in p.nodes}
        )
        assert fed[0] == nodes[1] == len(below) and fed[1] == 0
        seen.add((nodes[0], fed[0]))
    assert len(seen) > 1
    assert Extent.of(deep) == Extent(2, {1: (3, 2)}) and Extent.of(deep).most_nodes == 8
    assert Extent.of(deep).depth == 3


def test_the_label_of_a_cut_chain_does_not_know_what_is_drawn_behind():
    """Groves that agree on the first token agree on the label of one token, under every rule."""
    pair, chains = tables(), (Action(1, 1, 0), Action(1, 3, 0))
    seen: dict = {}
    for (grove, probs), _ in enumerate_outcomes(lambda chance: grove_at_root(pair, chains, chance)):
        labels = Efficiencies(grove, probs, chains).array(["specinfer", "block", "traversal"])[0, :, 0]
        seen.setdefault(grove.tokens[0], []).append(labels)
    assert len(seen) == 3 and all(len(some) == 9 for some in seen.values())
    for some in seen.values():
        for labels in some:
            assert labels.tolist() == pytest.approx(some[0].tolist(), abs=1e-12)
