"""The delayed-tree selector in the decoder: exact whatever it chooses; its features, network and prices as they are served."""

import dataclasses
import json
import warnings

import numpy as np
import pytest
import torch

from predictors.actions import Action
from predictors.bundle import ContractError
from predictors.controllers import Controller, Session
from predictors.controllers.delayed_tree import DelayedTree
from predictors.sampling import SamplingSettings
from predictors.tree_choice import SCALARS, scalars_of, state_of
from runtime import ModelPair, Randomness, load_decoder
from runtime.audit.enumeration import total_variation
from runtime.audit.tables import TableModel, target_law
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.trees import DelayedTreeConfig, DelayedTreeDraft
from runtime.laws import processed_law
from runtime.verification import VERIFIERS
from tests.ancestral import LlamaLogits
from tests.bundles import ACTIONS, selector_bundle
from tests.predictors.affine_profile import PROFILE
from tests.runtime.test_exactness import PROMPT
from tests.selectors import chosen_trees, law_of, small_pair, tiniest_pair
from tests.toys import tiny_llama

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


# ---- as it is served


def fresh_view(pair, text, settings, layers=(2,), draft_layers=(1,)):
    """State and scalars at the end of ``text`` from one pass of each model over all of it."""
    target, draft = pair.target.open(len(text), layers), pair.draft.open(len(text), draft_layers)
    ahead, behind = target.forward(text[:-1]), draft.forward(text)
    p, q, root = (processed_law(row, settings) for row in (ahead.logits[-1], behind.logits[-2], behind.logits[-1]))
    state = torch.cat([ahead.hidden_NKD[-1].reshape(-1), behind.hidden_NKD[-2:].reshape(-1)]).half()
    entropy = [-(law * law.log()).sum() for law in (p, q)]
    divergences = [(p * (p / q).log()).sum(), (q * (q / p).log()).sum()]
    known = [len(text), settings.temperature, settings.top_p]
    scalars = [*entropy, *divergences, (p - q).abs().sum(), -(root * root.log()).sum(), *known]
    return state, torch.tensor(scalars)


def test_served_features_are_those_of_a_pass_over_the_whole_text(pair, tmp_path, monkeypatch):
    """After rejections, whole acceptances (where the draft is a token behind) and the prefill alike."""
    pair = ModelPair(pair.target.model, tiny_llama(seed=0, layers=1))
    decoder = load_decoder(selector_bundle(tmp_path / "b", pair), pair)
    seen, tree = [], DelayedTree.expected
    monkeypatch.setattr(
        DelayedTree, "expected", lambda controller, root: (seen.append(root), tree(controller, root))[1]
    )
    settings, text, rounds = SamplingSettings(0.6), [3, 1, 4], []
    for step in decoder.stream(text, 40, temperature=0.6, randomness=Randomness(3)):
        if len(seen) > len(rounds):
            rounds.append((list(text), step.record))
        text = [*text, *step.tokens]
    depths = {record.accepted - max(0, record.levels) for _, record in rounds}
    assert 0 in depths and len(depths) > 1, "whole acceptances and rejections"
    for (before, _), root in zip(rounds, seen, strict=True):
        state, scalars = fresh_view(pair, before, settings)
        assert torch.allclose(state_of(root).float(), state.float(), atol=2e-2)
        assert torch.allclose(scalars_of(root), scalars, atol=1e-3), dict(
            zip(SCALARS, scalars_of(root) - scalars, strict=True)
        )


def test_prices_enter_the_choice(pair, tmp_path):
    """The same worths, and a price that rises with the context for one action only."""

    def dearer(card):
        card["prices"]["action_seconds"] = [[0.01, 0.01], [0.01, 10.0]]
        card["prices"]["contexts"] = [4, 100]

    flat = {"sharp": 0.0}
    decoder = load_decoder(selector_bundle(tmp_path / "b", pair, ACTIONS[:2], change=dearer, margin=-9.0, **flat), pair)
    decoder.controller.network.head[-1].bias.data.copy_(torch.tensor([0.0, 0.5]))
    names = chosen_trees(decoder)
    decoder.generate([1, 2, 3], max_new_tokens=40, temperature=1.0, randomness=Randomness(0))
    assert names[0] == "chain-2" and set(names[1:]) == {"chain-1"}


@pytest.mark.parametrize("fault, reason", [("nan", "not finite"), ("far", "squared distance")])
def test_a_selector_that_cannot_be_trusted_stands_aside(tmp_path, fault, reason):
    def distrust(card):
        card["rule"]["max_distance"] = 0.0 if fault == "far" else 1e9

    tiny_pair = tiniest_pair()
    decoder = load_decoder(selector_bundle(tmp_path / "b", tiny_pair, ACTIONS[:3], change=distrust), tiny_pair)
    if fault == "nan":
        decoder.controller.network.head[-1].bias.data.fill_(float("nan"))
    settings = SamplingSettings(1.0)
    with pytest.warns(UserWarning, match=reason):
        law = law_of(decoder, 3, settings)
    assert total_variation(law, target_law(LlamaLogits(tiny_pair.target.model), PROMPT, 3, settings)) < 1e-5


def test_a_selector_of_another_pair_or_drafter_is_refused(pair, tmp_path):
    folder = selector_bundle(tmp_path / "b", pair)
    stranger = ModelPair(tiny_llama(seed=5), pair.draft.model)
    with pytest.raises(ContractError, match="identity|target"):
        load_decoder(folder, stranger)
    with pytest.raises(ValueError, match="chooses among delayed trees"):
        load_decoder(folder, pair, {"drafter": {"kind": "chain", "gamma": 3}})
    with pytest.raises(ValueError, match="branch_parallel drafts chains"):
        load_decoder(folder, pair, {"preset": "specbranch-no-hrad"})


def test_a_machine_of_other_prices(pair, tmp_path):
    """Warned about, and on request chosen by: with another profile the same network decides anew."""
    folder, file = selector_bundle(tmp_path / "b", pair), tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE.to_record()))
    with pytest.warns(UserWarning, match=r"up to [0-9.]+ times as much.*reprice=True"):
        as_exported = load_decoder(folder, pair, latency=file).controller
    assert as_exported.prices.profile_hash == "none"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repriced = load_decoder(folder, pair, latency=file, reprice=True).controller
        assert repriced.at_latency(PROFILE, reprice=False) is repriced, "its own prices need no warning"
    assert repriced.prices.profile_hash == PROFILE.profile_hash
    assert np.ptp(repriced.prices.at(10)) > 0 == np.ptp(as_exported.prices.at(10))
    with pytest.raises(ValueError, match="needs the latency profile"):
        load_decoder(folder, pair, reprice=True)
    file.write_text(json.dumps(dataclasses.replace(PROFILE, noise=("cell 0",)).to_record()))
    with pytest.warns(UserWarning, match="was noisy when the latency profile of toy was measured .cell 0."):
        load_decoder(folder, pair, latency=file, reprice=True)


def test_another_verifier_or_draft_temperature_is_warned_about(pair, tmp_path):
    folder = selector_bundle(tmp_path / "b", pair)
    with pytest.warns(UserWarning, match="verifier 'traversal'.*serves 'nss'"):
        load_decoder(folder, pair, {"verifier": "nss"})
    with pytest.warns(UserWarning, match="draft_temperature=0.2"):
        load_decoder(folder, pair, {"drafter": {"kind": "delayed_tree", "draft_temperature": 0.2}})
