"""Whatever stops chains and trees, in the decoder: rules, stop models and survival. Exact beside branches, biased twins noticed,
served features, repriced."""

import json
import warnings
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from predictors.latency.profile import undisturbed
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root, token_numbers
from predictors.survival import numbers_of
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.audit.enumeration import total_variation
from runtime.audit.rounds import decoded_law
from runtime.audit.tables import target_law
from runtime.drafting.chain import Chain, ChainDraft
from runtime.drafting.drafted import DraftedTree
from runtime.drafting.trees import LevelDraft
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree, chain_tree
from tests.ancestral import LlamaLogits
from tests.bundles import stop_bundle, survival_bundle
from tests.predictors.affine_profile import PROFILE
from tests.runtime.test_controller_contract import FORK, undecided
from tests.runtime.test_exactness import PROMPT
from tests.selectors import law_of, small_pair, tiniest_pair
from tests.toys import tiny_llama

SETTINGS = SamplingSettings(1.0)
RULES = [  # thresholds within what these models, almost uniform over 32 tokens, say
    {"kind": "confidence", "epsilon": 0.06},
    {"kind": "entropy", "threshold": 0.1737, "step": 0.0},
    {"kind": "roc", "threshold": 0.03},
    {"kind": "ema", "tiers": [1, 2, 4]},
]
CHAIN = {"drafter": {"kind": "chain", "gamma": 4}, "verifier": "block"}
DEEP_FORK = {"drafter": {"kind": "fork", "width": 2, "depth": 4}, "verifier": "traversal"}


@pytest.fixture(scope="module")
def tiny_pair():
    return tiniest_pair()


def lengths(decoder, prompts=((1, 2), (0,), (0, 2, 1))):
    """Drafted levels of rounds that the budget does not cut."""
    found = []
    for seed, prompt in enumerate(prompts):
        options = {"max_new_tokens": 30, "temperature": 1.0, "randomness": Randomness(seed), "eos_token_id": ()}
        found += [record.levels for record in decoder.generate(list(prompt), **options).rounds[1:-3]]
    return found


@pytest.mark.parametrize("inputs", ["law", "before", "behind"])
def test_output_law_beside_branches(tiny_pair, tmp_path, inputs):
    """In the branch-parallel loop the model also says how much of a branch is kept."""
    folder = balanced_bundle(tmp_path, tiny_pair, inputs=inputs)
    options = {"preset": "specbranch-no-hrad", "gamma": 2, "k_max": 1, "k_rule": "const", "overlap": "none"}
    with pytest.raises(ValueError, match="retention 'prior' runs .* early_stop follows one draft"):
        load_decoder(folder, tiny_pair, {**options, "retention": "prior"})
    decoder = load_decoder(folder, tiny_pair, options)
    law = decoded_law(decoder, PROMPT, 4, SETTINGS)
    assert total_variation(law, target_law(LlamaLogits(tiny_pair.target.model), PROMPT, 4, SETTINGS)) < 1e-5


def balanced_bundle(tmp_path, pair, kind="early_stop", inputs=None, **rule):
    """A bundle whose rule stops at about half of the tokens it scores: at their median score."""
    middle = median_score(pair, kind, inputs)
    if rule.get("product"):
        middle **= 1.5
    return stop_bundle(tmp_path / "b", pair, kind, inputs, threshold=middle + 1e-6, **rule)


@cache
def median_score(pair, kind, inputs):
    """Of the tokens of a few texts, by a rule that never stops."""
    scores = []
    with TemporaryDirectory() as folder:
        probe = load_decoder(stop_bundle(Path(folder) / "probe", pair, kind, inputs, threshold=1e-9), pair)
    predict = probe.controller.predict

    def recorded(laws):
        chances, *place = predict(laws)
        scores.extend(chances)
        return chances, *place

    probe.controller.predict = recorded
    lengths(probe)
    return float(torch.tensor(scores).median())


def test_a_kept_token_is_drawn_where_drafting_stops(tiny_pair, tmp_path):
    """MCSD and SpecDec++ verify the token they were about to draw."""
    for inputs, kept in (("law", 1), ("behind", 2)):
        folder = stop_bundle(tmp_path / inputs, tiny_pair, inputs=inputs, threshold=1.0, keeps=True)
        assert set(lengths(load_decoder(folder, tiny_pair))) == {kept}


def test_the_best_chain_of_a_fork_speaks_for_its_level(tiny_pair, tmp_path):
    """A fork ends where every chain's predicted acceptance is below the threshold, and nowhere else."""
    decoder = load_decoder(balanced_bundle(tmp_path, tiny_pair, inputs="before"), tiny_pair, FORK)
    rule, predict, levels = decoder.controller.settings[-1].rule, decoder.controller.predict, []

    def recorded(laws):
        chances, *place = predict(laws)
        levels.append((laws[0].drafted, chances))
        return chances, *place

    decoder.controller.predict = recorded
    steps = list(decoder.stream([1, 2], 40, 1.0, randomness=Randomness(1), observe=True))[1:-3]
    seen = iter(levels)
    both = set()
    for step in steps:
        depth = 0
        while depth < 2:
            drafted, chances = next(seen)
            assert drafted == depth
            both.add((len(chances) > 1, max(chances) < rule.threshold))
            if max(chances) < rule.threshold:
                break
            depth += 1
        assert step.record.levels == depth
    assert both >= {(False, True), (False, False)} and len(both) > 2


# ---- deliberately wrong twins


def test_dropping_the_token_just_scored_is_noticed(tiny_pair, tmp_path, monkeypatch):
    """A score that saw the token decides whether the token is verified."""
    decoder = load_decoder(balanced_bundle(tmp_path, tiny_pair, inputs="behind"), tiny_pair)
    honest, model = ChainDraft.draft, decoder.controller

    def dropping(draft, root, cap, session, clock):
        drafted = honest(draft, root, cap, session, clock)
        tree = drafted.tree
        if tree.num_nodes and session.score < model.settings[-1].rule.threshold:
            tree = _without_last(tree)
        return DraftedTree(tree, drafted.laws[: tree.num_nodes])

    monkeypatch.setattr(ChainDraft, "draft", dropping)
    expected = target_law(LlamaLogits(tiny_pair.target.model), PROMPT, 4, SETTINGS)
    assert total_variation(law_of(decoder, 4, SETTINGS), expected) > 1e-3


def _without_last(tree):
    count = tree.num_nodes - 1
    return chain_tree(tree.tokens[:count], tree.draft_probs[: count + 1]) if count else EMPTY_TREE


def test_removing_a_node_by_its_own_score_is_noticed(tiny_pair, monkeypatch):
    """Candidates that the draft holds for unlikely are not submitted, though they were drawn."""
    honest = LevelDraft.draft

    def pruning(draft, root, cap, session, clock):
        drafted = honest(draft, root, cap, session, clock)
        tree, laws = drafted.tree, drafted.laws
        keep = [node for node, law in enumerate(laws) if law.probs_V[tree.token_list[node]] > 0.25]
        kept = [node for node in keep if tree.parent_list[node] in (-1, *keep)]
        return DraftedTree(_subtree(tree, kept), [laws[node] for node in kept])

    monkeypatch.setattr(LevelDraft, "draft", pruning)
    decoder = build_decoder(tiny_pair, {"method": "speculative", **FORK, "drafter": {**FORK["drafter"], "depth": 1}})
    expected = target_law(LlamaLogits(tiny_pair.target.model), PROMPT, 3, SETTINGS)
    assert total_variation(law_of(decoder, 3, SETTINGS), expected) > 1e-3


def _subtree(tree, nodes):
    if not nodes:
        return EMPTY_TREE
    place = {-1: -1} | {node: number for number, node in enumerate(nodes)}
    return TokenTree(
        tokens=tree.tokens[nodes],
        parents=torch.tensor([place[tree.parent_list[node]] for node in nodes]),
        draws=torch.arange(len(nodes)),
        draft_probs=tree.draft_probs[[0, *(node + 1 for node in nodes)]],
        law=DraftLaw.WITHOUT_REPLACEMENT,
    )


def test_served_states_are_those_of_a_pass_over_the_whole_text(tmp_path):
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1))
    decoder = load_decoder(stop_bundle(tmp_path / "b", pair, inputs="before", threshold=1e-9), pair)
    seen, features = [], decoder.controller.features
    decoder.controller.features = lambda law: (seen.append((law, features(law))), features(law))[1]
    text, read = [3, 1, 4], 0
    for step in decoder.stream(text, 30, temperature=1.0, randomness=Randomness(2), observe=True):
        if step.evidence is not None:
            drafted = step.evidence.tree.token_list
            for law, state in seen[read:]:
                whole = pair.draft.open(64, (1,)).forward([*text, *drafted[: law.drafted]])
                assert torch.allclose(state, whole.hidden_NKD[-1].reshape(-1).half().float(), atol=5e-3)
            read = len(seen)
        text = [*text, *step.tokens]
    assert read > 20 and {law.drafted for law, _ in seen} == {0, 1, 2}


@pytest.mark.parametrize("drafter", [CHAIN, DEEP_FORK], ids=["chain", "fork"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["kind"])
def test_a_rule_changes_how_far_is_drafted(rule, drafter):
    decoder = build_decoder(small_pair(), {"method": "speculative", **drafter, "controller": rule})
    levels = set(lengths(decoder, ([1, 2, 3], [2, 2, 3], [3, 2, 3])))
    assert len(levels) > 1 and max(levels) <= 4, levels


# ---- survival


def test_dropping_the_token_it_stopped_at_is_noticed(tiny_pair, tmp_path, monkeypatch):
    """Twin: a token that was looked at and then not verified."""
    decoder, draw = undecided("survival", tmp_path, tiny_pair, {}, {}, 1.0), ChainDraft.draw

    def dropped(self, root, cap, *others):
        chain = draw(self, root, cap, *others)
        return Chain(chain.tokens[:-1], chain.laws[:-1]) if len(chain) < cap else chain

    monkeypatch.setattr(ChainDraft, "draw", dropped)
    expected = target_law(LlamaLogits(tiny_pair.target.model), PROMPT, 4, SETTINGS)
    assert total_variation(law_of(decoder, 4, SETTINGS), expected) > 1e-3


def test_tokens_before_the_first_decision_are_caught_up(tiny_pair, tmp_path):
    """The same decisions from the second token on, if none is asked before it; and nothing is asked about the last one."""
    early, late = (
        load_decoder(survival_bundle(tmp_path / str(least), tiny_pair, seed=3, least=least), tiny_pair)
        for least in (1, 2)
    )
    for seed in range(12):
        options = {"max_new_tokens": 12, "temperature": 1.0, "eos_token_id": ()}
        one, other = (each.generate([1, seed % 3], randomness=Randomness(seed), **options) for each in (early, late))
        first, second = one.rounds[1], other.rounds[1]
        if first.levels > 1:
            assert first.levels == second.levels and first.forecasts == second.forecasts
        assert first.asked == min(first.levels, 2) and second.asked == 2 and second.levels >= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_of_a_token_are_alike_everywhere(dtype):
    """On the host, by the program for accelerators, and from recorded probabilities; an impossible token among them."""
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits_V = (2.5 * torch.randn(50, generator=random)).to(dtype)
        logits_V[3] = -torch.inf
        token = torch.randint(4, 50, (), generator=random)
        law = NextLaw(Root(5, 4, SETTINGS, None), SETTINGS, 0, logits_V, torch.softmax(logits_V.float(), 0))
        drawn = DrawnToken(law, token)
        probs_V = torch.softmax(logits_V.double(), 0)
        expected = numbers_of(float(probs_V.max()), float(probs_V[token]))
        given = torch.cat([logits_V.float(), token.reshape(1).float()])
        assert tuple(drawn.numbers(lambda _: torch.zeros(2))) == pytest.approx(tuple(expected), abs=1e-5)
        assert token_numbers(given).tolist() == pytest.approx(list(expected), abs=1e-5)


def test_a_rule_that_does_not_pay_is_followed_if_told(tiny_pair, tmp_path):
    """At no price it always drafts on."""
    folder = survival_bundle(tmp_path / "b", tiny_pair, pays=False, rate=0.0)
    asked = {"controller": {"kind": "survival", "bundle": str(folder), "asked": True}}
    chain = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "block"}
    assert set(lengths(build_decoder(tiny_pair, chain | asked))) == {3}


def test_another_machine_takes_its_rate_from_the_card(tiny_pair, tmp_path):
    elsewhere = [
        {"cost_ratio": ratio, "rule": {"rate": rate, "least": least}, "static_length": least}
        for ratio, rate, least in ((2.0, 1.0, 1), (200.0, 5.0, 3))
    ]

    def priced(card):
        for made in card["settings"]:
            made["elsewhere"] = elsewhere

    folder = survival_bundle(tmp_path / "b", tiny_pair, change=priced)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.to_record()))
    with warnings.catch_warnings(action="error"):
        made = load_decoder(folder, tiny_pair, latency=path, reprice=True).controller.settings[1]
    ratio = PROFILE.cost_ratio(40)
    share = torch.log(torch.tensor(ratio / 2)) / torch.log(torch.tensor(100.0))
    assert made.rule.rate == pytest.approx(1 + 4 * float(share)) and made.rule.least == made.static_length == 1
    quiet = undisturbed(PROFILE)
    one = quiet.latency("target", tokens=2, context=40).seconds + quiet.latency("draft", rows=1, context=40).seconds
    assert len(made.costs) == 4 and made.costs[0] == 1 and made.costs[1] * 30 > one
