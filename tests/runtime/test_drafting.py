"""Tree drafters in the real loop: exact output laws, exact tree laws, layout, caches, end of sequence and what is refused."""

from dataclasses import replace

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.adapter import Forward
from runtime.audit.enumeration import enumerate_outcomes, summed, total_variation
from runtime.audit.rounds import decoded_law
from runtime.audit.tables import TableModel, TableState, target_law
from runtime.drafting.drafted import Copies
from runtime.drafting.sampler import PlainSampler, read_rows
from runtime.drafting.trees import LevelDraft
from tests.ancestral import LlamaLogits, cut_law
from tests.branches import shaken_llama
from tests.runtime.test_exactness import CONTROLLERS, PROMPT, decoder_law
from tests.toys import tiny_llama
from tests.trees import delayed_trees, deterministic_tree, distinct_trees, node_paths

IID_RULES = ["traversal", "nss", "naive_tree", "spectr", "khisti", "specinfer", "hsd_multi_draft"]
DISTINCT_RULES = ["traversal", "match", "naive_tree", "rrs_without_replacement"]  # match is nss
TWO_PATHS = {"kind": "delayed_tree", "k": 2, "l1": 0, "l2": 1}
DELAYED = {"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 1}
PAIRS = {"kind": "multi_candidate", "config": [2, 1]}
FORK = {"kind": "fork", "width": 2, "depth": 2}
TOP_K = {"kind": "multi_candidate", "config": [2, 2], "candidates": "top_k"}
COMBINATIONS = [
    *((drafter, rule) for drafter in (TWO_PATHS, DELAYED) for rule in IID_RULES),
    *((drafter, rule) for drafter in (PAIRS, FORK, TOP_K) for rule in DISTINCT_RULES),
]


@pytest.fixture(params=["read", "unread"], autouse=True)
def how_trees_grow(request, monkeypatch):
    """By levels that the host reads, or unread to the end, as on a device (whatever the controller: only where none stops)."""
    monkeypatch.setattr(PlainSampler, "reads", request.param == "read")
    return request.param


def toys(zeros=False):
    return ModelPair(TableModel(3, seed=1, zeros=zeros), TableModel(3, seed=2, zeros=zeros))


def speculative(drafter, verifier, **more):
    return {"method": "speculative", "drafter": drafter, "verifier": verifier, **more}


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("drafter, verifier", COMBINATIONS, ids=str)
def test_output_law_is_the_targets(drafter, verifier, temperature):
    pair, settings = toys(zeros=True), SamplingSettings(temperature)
    law = decoder_law(pair, speculative(drafter, verifier), 4, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 4, settings)) < 1e-9


@pytest.mark.parametrize("drafter", [DELAYED, PAIRS], ids=str)
@pytest.mark.parametrize("controller", CONTROLLERS, ids=str)
def test_every_controller_stops_trees_losslessly(drafter, controller):
    pair, settings = toys(), SamplingSettings(0.8)
    law = decoder_law(pair, speculative(drafter, "traversal", controller=controller), 3, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 3, settings)) < 1e-9


@pytest.mark.parametrize("drafter", [DELAYED, TOP_K], ids=str)
def test_draft_temperature_and_filters(drafter):
    pair, settings = ModelPair(TableModel(4, seed=5), TableModel(4, seed=6)), SamplingSettings(0.8, top_p=0.7)
    law = decoder_law(pair, speculative({**drafter, "draft_temperature": 2.0}, "traversal"), 3, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 3, settings)) < 1e-9


@pytest.mark.parametrize("drafter, verifier", [(TWO_PATHS, "specinfer"), (PAIRS, "traversal")], ids=str)
def test_output_law_of_tiny_llamas(drafter, verifier):
    pair, settings = ModelPair(tiny_llama(4, seed=0), tiny_llama(4, seed=1)), SamplingSettings(1.0)
    law = decoder_law(pair, speculative(drafter, verifier), 3, settings)
    assert total_variation(law, target_law(LlamaLogits(pair.target.model), PROMPT, 3, settings)) < 1e-5


BIG = [
    ({"kind": "delayed_tree", "k": 4, "l1": 2, "l2": 4}, "traversal"),
    ({"kind": "multi_candidate", "config": [4, 2, 2, 1]}, "rrs_without_replacement"),
    ({"kind": "multi_candidate", "config": [3, 2, 2], "candidates": "top_k"}, "match"),
    ({"kind": "fork", "width": 5, "depth": 5}, "traversal"),
    ({"kind": "chain", "gamma": 4, "leaves": [3, 1, 0, 2]}, "block"),
]


@pytest.mark.parametrize("prompt", [[3], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("drafter, verifier", BIG, ids=str)
def test_greedy_text_is_plain_decodings(drafter, verifier, prompt):
    pair = ModelPair(tiny_llama(seed=1), shaken_llama(seed=1))
    expected = build_decoder(pair, {"method": "autoregressive"}).generate(prompt, max_new_tokens=60).tokens
    out = build_decoder(pair, speculative(drafter, verifier)).generate(prompt, max_new_tokens=60)
    assert out.tokens == expected
    assert any(record.accepted > 1 for record in out.rounds) and any(record.rolled_back for record in out.rounds)


@pytest.mark.parametrize("drafter, verifier", BIG, ids=str)
def test_drafts_see_the_committed_text(drafter, verifier):
    """Every law of the drafted tree equals the draft's cache-free law on its path; so does the target's."""
    pair = ModelPair(tiny_llama(seed=1), tiny_llama(seed=2))
    text, decoder = [5, 6, 7], build_decoder(pair, speculative(drafter, verifier))
    options = {"max_new_tokens": 24, "temperature": 1.0, "randomness": Randomness(3), "observe": True}
    for step in decoder.stream([5, 6, 7], **options):
        if step.evidence is not None:
            tree = step.evidence.tree
            for node in range(tree.num_nodes):
                before = [*text, *(tree.token_list[above] for above in tree.path(node + 1)[:-1])]
                probs = LlamaLogits(pair.draft.model).logits(before).softmax(-1).float()
                torch.testing.assert_close(step.evidence.draft_laws[node].probs_V, probs, atol=1e-5, rtol=1e-4)
            for row, path in enumerate(node_paths(tree)):
                probs = LlamaLogits(pair.target.model).logits([*text, *path]).softmax(-1).float()
                torch.testing.assert_close(step.evidence.target_probs[row], probs, atol=1e-5, rtol=1e-4)
        text += step.tokens


# ---- the drafters draw what they say


def drafted_law(config, draft):
    """Law of the drafted tree (tokens, parents, draws in order) of the first round."""
    decoder = build_decoder(ModelPair(TableModel(3, seed=1), draft), speculative(config, "traversal"))

    def first_tree(chance):
        steps = decoder.stream(PROMPT[:-1], max_new_tokens=9, temperature=1.0, randomness=chance, observe=True)
        if next(steps).tokens != [PROMPT[-1]]:  # the trees of tests.trees grow from PROMPT
            return None
        return key(next(steps).evidence.tree)

    law = summed(enumerate_outcomes(first_tree))
    law.pop(None)
    return {tree: probability / sum(law.values()) for tree, probability in law.items()}


def key(tree):
    return tuple(tree.token_list), tuple(tree.parent_list), tuple(tree.draws.tolist())


@pytest.mark.parametrize(
    "config, trees",
    [
        ({"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 1}, lambda draft: delayed_trees(draft, 2, 1, 1)),
        ({"kind": "delayed_tree", "k": 3, "l1": 0, "l2": 1}, lambda draft: delayed_trees(draft, 3, 0, 1)),
        ({"kind": "multi_candidate", "config": [2, 1]}, lambda draft: distinct_trees(draft, [2, 1])),
        ({"kind": "multi_candidate", "config": [3]}, lambda draft: distinct_trees(draft, [3])),
        (TOP_K, lambda draft: [(deterministic_tree(draft, [2, 2]), 1.0)]),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_trees_follow_their_law(config, trees):
    draft = TableModel(3, seed=2, zeros=config["kind"] != "multi_candidate" or config["config"] == [3])
    expected = summed((key(tree), probability) for tree, probability in trees(draft))
    assert total_variation(drafted_law(config, draft), expected) < 1e-12


@pytest.mark.parametrize("drafter, verifier", BIG[:-1], ids=str)  # a chain ends there where tokens are looked at
def test_nothing_is_drafted_after_the_end_of_sequence(drafter, verifier):
    pair = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    decoder = build_decoder(pair, speculative(drafter, verifier))
    ended = 0
    for seed in range(20):
        options = {"max_new_tokens": 12, "temperature": 1.0, "randomness": Randomness(seed), "eos_token_id": 2}
        tokens = []
        for step in decoder.stream(PROMPT, observe=True, **options):
            tokens += step.tokens
            if step.evidence is not None:
                tree = step.evidence.tree
                assert all(tree.token_list[parent] != 2 for parent in tree.parent_list if parent >= 0)
        assert 2 not in tokens[:-1]
        ended += tokens[-1] == 2
    assert ended > 10


@pytest.mark.parametrize("eos", [0, 1, 2])
@pytest.mark.parametrize("drafter, verifier", [(DELAYED, "traversal"), (PAIRS, "rrs_without_replacement")], ids=str)
def test_output_law_up_to_the_end_of_sequence(drafter, verifier, eos):
    pair, settings = toys(), SamplingSettings(1.0)
    decoder = build_decoder(pair, speculative(drafter, verifier))
    law = decoded_law(decoder, PROMPT, 3, settings, eos_tokens=(eos,))
    assert total_variation(law, cut_law(target_law(pair.target, PROMPT, 3, settings), eos)) < 1e-9


def test_a_draft_with_a_smaller_vocabulary():
    pair = ModelPair(TableModel(4, seed=1), TableModel(4, seed=2))
    pair.draft = TableModel(3, seed=2)  # token 3 is padding that the draft lacks
    settings = SamplingSettings(1.0)
    for drafter, verifier in ((PAIRS, "traversal"), (TWO_PATHS, "specinfer"), ({**TOP_K, "config": [4]}, "nss")):
        law = decoder_law(pair, speculative(drafter, verifier), 3, settings)
        assert total_variation(law, target_law(pair.target, PROMPT, 3, settings)) < 1e-9


# ---- deliberately wrong drafters: the tests above must notice them


def _sorted_children(drawn, laws):
    return [sorted(some, key=lambda token: -float(law.probs_V[token])) for law, some in zip(laws, drawn, strict=True)]


def _unlikely_dropped(drawn, laws):
    kept = [[token for token in some if law.probs_V[token] > 0.25] for law, some in zip(laws, drawn, strict=True)]
    return [some or list(whole[:1]) for some, whole in zip(kept, drawn, strict=True)]


def mistaken(honest, wrong):
    """``honest`` draws, of which ``wrong`` makes others; of unread rows, too."""

    def draw(self, depth, laws, *copies):
        drawn = honest(self, depth, laws, *copies)
        if not isinstance(drawn, torch.Tensor):
            return wrong(drawn, laws)
        kept, width = wrong(read_rows(drawn), laws), drawn.shape[1] - 1
        return torch.tensor([[*row, *[0] * (width - len(row)), len(row)] for row in kept])

    return draw


@pytest.mark.parametrize("wrong", [_sorted_children, _unlikely_dropped])
@pytest.mark.parametrize("drafter, verifier", [(TWO_PATHS, "specinfer"), (PAIRS, "rrs_without_replacement")], ids=str)
def test_selecting_drawn_tokens_is_noticed(wrong, drafter, verifier, monkeypatch, how_trees_grow):
    name = "_draw" if how_trees_grow == "read" else "_draw_unread"
    for draft in LevelDraft.__subclasses__():
        monkeypatch.setattr(draft, name, mistaken(getattr(draft, name), wrong))
    pair, settings = toys(), SamplingSettings(1.0)
    law = decoder_law(pair, speculative(drafter, verifier), 3, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 3, settings)) > 1e-3


# ---- trees that grow unread, from a draft that says the same never twice


UNREAD = pytest.mark.parametrize("how_trees_grow", ["unread"], indirect=True)


class Uneven(TableModel):
    """Says something else at every place of a pass, far more than rounding would."""

    def open(self, max_length, layers=()):
        return UnevenState(self)


class UnevenState(TableState):
    def forward(self, tokens, parents=None, last=None):
        logits = super().forward(tokens, parents, last).logits
        return Forward(logits + torch.linspace(0, 1, len(logits)).outer(torch.tensor([0.0, 1.0, 2.0])))


def error_of_copies():
    """Total variation between the output's law and the target's."""
    pair, settings = ModelPair(TableModel(3, seed=1), Uneven(3, seed=2)), SamplingSettings(1.0)
    law = decoder_law(pair, speculative({"kind": "delayed_tree", "k": 2, "l1": 0, "l2": 2}, "specinfer"), 4, settings)
    return total_variation(law, target_law(pair.target, PROMPT, 4, settings))


@UNREAD
def test_copies_of_a_node_are_drawn_from_under_one_law():
    assert error_of_copies() < 1e-9


@UNREAD
def test_copies_that_are_drawn_from_under_their_own_laws_are_noticed(monkeypatch):
    below = Copies.below
    monkeypatch.setattr(
        Copies, "below", lambda copies, rows: replace(below(copies, rows), first=torch.arange(rows[:, 1:].numel()))
    )
    assert error_of_copies() > 1e-3
