"""Stop models in the decoder: exact beside branches, biased variants noticed, served features, what is refused."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.drafting.chain import ChainDraft
from runtime.drafting.drafted import DraftedTree
from runtime.drafting.trees import LevelDraft
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree, chain_tree
from tests.ancestral import LlamaLogits, target_law
from tests.bundles import stop_bundle
from tests.by_rounds import decoded_law
from tests.runtime.test_controller_contract import FORK
from tests.runtime.test_exactness import PROMPT
from tests.selectors import law_of, tiniest_pair
from tests.toys import tiny_llama, total_variation


@pytest.fixture(scope="module")
def tiny_pair():
    return tiniest_pair()


def lengths(decoder, prompts=((1, 2), (0,), (0, 2, 1)), temperature=1.0):
    """Drafted levels of rounds that the budget does not cut."""
    records = []
    for seed, prompt in enumerate(prompts):
        rounds = decoder.generate(
            list(prompt), max_new_tokens=30, temperature=temperature, randomness=Randomness(seed), eos_token_id=()
        ).rounds
        records += rounds[1:-3]
    return [record.levels for record in records]


@pytest.mark.parametrize("inputs", ["law", "before", "behind"])
def test_output_law_beside_branches(tiny_pair, tmp_path, inputs):
    """In the branch-parallel loop the model also says how much of a branch is kept."""
    folder = balanced_bundle(tmp_path, tiny_pair, inputs=inputs)
    options = {"preset": "specbranch-no-hrad", "gamma": 2, "k_max": 1, "k_rule": "const", "overlap": "none"}
    with pytest.raises(ValueError, match="retention 'prior' runs .* early_stop follows one draft"):
        load_decoder(folder, tiny_pair, {**options, "retention": "prior"})
    decoder = load_decoder(folder, tiny_pair, options)
    settings = SamplingSettings(1.0)
    law = decoded_law(decoder, PROMPT, 4, settings)
    assert total_variation(law, target_law(LlamaLogits(tiny_pair.target.model), PROMPT, 4, settings)) < 1e-5


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
    settings = SamplingSettings(1.0)
    expected = target_law(LlamaLogits(tiny_pair.target.model), PROMPT, 4, settings)
    assert total_variation(law_of(decoder, 4, settings), expected) > 1e-3


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
    settings = SamplingSettings(1.0)
    expected = target_law(LlamaLogits(tiny_pair.target.model), PROMPT, 3, settings)
    assert total_variation(law_of(decoder, 3, settings), expected) > 1e-3


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


def test_a_state_that_nobody_tapped_is_an_error(tiny_pair, tmp_path):
    decoder = load_decoder(stop_bundle(tmp_path / "b", tiny_pair), tiny_pair)
    decoder.controller.draft_layers = ()
    with pytest.raises(ValueError, match="reads the draft's hidden states, and the decoder taps none"):
        decoder.generate([1, 2], max_new_tokens=8)


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
