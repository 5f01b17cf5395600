"""Numbers that are not finite: whatever the draft says, the text is the target's; where the target says nothing, that is an
error, as often as in plain decoding."""

import math

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.adapter import Forward
from runtime.audit.enumeration import enumerate_outcomes, summed, total_variation
from runtime.audit.tables import TableModel, target_law
from runtime.drafting.draft import ModelDraft
from runtime.laws import fit_vocabulary
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import VERIFIERS, Verifier
from runtime.verification.outcome import NotFiniteError

PROMPT, LENGTH = [0, 1], 4
REFUSED = ("refused",)
CHAIN, TREE, DISTINCT = (
    {"kind": "chain", "gamma": 2},
    {"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 1},
    {"kind": "multi_candidate", "config": [2, 1]},
)
METHODS = {
    **{f"chain {rule}": speculative for rule in ("tokenwise", "block", "traversal")
       for speculative in [{"method": "speculative", "drafter": CHAIN, "verifier": rule}]},
    **{f"tree {rule}": {"method": "speculative", "drafter": TREE, "verifier": rule}
       for rule in ("traversal", "nss", "naive_tree", "spectr", "specinfer", "khisti", "hsd_multi_draft")},
    "distinct": {"method": "speculative", "drafter": DISTINCT, "verifier": "rrs_without_replacement"},
    "top": {"method": "speculative", "drafter": DISTINCT | {"candidates": "top_k"}, "verifier": "match"},
    "leaves": {"method": "speculative", "drafter": CHAIN | {"leaves": [2, 1]}, "verifier": "block"},
    "entropy": {"method": "speculative", "drafter": CHAIN, "verifier": "block", "controller": {"kind": "entropy"}},
    "lookup": {"method": "speculative", "drafter": {"kind": "lookup", "length": 2, "least": 1}, "verifier": "block"},
    **{f"branches {rule}": {"method": "branch_parallel", "gamma": 1, "k_max": 2, "branch_verifier": rule, "overlap": "none"}
       for rule in ("match", "rrs", "hybrid")},
    "progressive": {"method": "progressive_tree", "max_children": 2, "max_depth": 2},
    "lookahead": {"method": "lookahead", "ngram": 3, "window": 2, "guesses": 2},
}  # fmt: skip
DRAFTS = [name for name in METHODS if name not in ("lookup", "progressive", "lookahead")]


class Holed(TableModel):
    """After some contexts it says nothing: NaN in one place or in all, infinitely much of a token, or that none is possible."""

    HOLES = ([math.nan, 0.0, 0.0], [math.nan] * 3, [0.0, math.inf, 0.0], [-math.inf] * 3, [0.0, math.nan, math.inf])

    def __init__(self, seed, often):
        super().__init__(3, seed)
        generator = torch.Generator().manual_seed(seed)
        for number, at in enumerate(torch.rand(self.table.shape[:2], generator=generator).flatten().argsort()[:often]):
            self.table[divmod(int(at), 4)] = torch.tensor(self.HOLES[number % len(self.HOLES)], dtype=torch.float64)


def law_of(pair, config, heat):
    """Law of the text, or of its being refused."""
    decoder = build_decoder(pair, config)

    def decoded(chance):
        try:
            options = {"temperature": heat, "randomness": chance, "eos_token_id": []}
            return tuple(decoder.generate(PROMPT, max_new_tokens=LENGTH, **options).tokens)
        except ValueError as error:
            assert "not finite" in str(error)
            return REFUSED

    return summed(enumerate_outcomes(decoded))


@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("often", [5, 16])  # 16: it never says anything
def test_a_draft_that_says_nothing_changes_no_law(name, heat, often):
    pair = ModelPair(TableModel(3, seed=1), Holed(2, often))
    law = law_of(pair, METHODS[name], heat)
    assert total_variation(law, target_law(pair.target, PROMPT, LENGTH, SamplingSettings(heat))) < 1e-9


def test_a_draft_that_is_drawn_from_all_the_same_is_caught(monkeypatch):
    """The wrong twin: the draft's rows as they are."""
    monkeypatch.setattr(
        ModelDraft,
        "_rows",
        lambda self, out: Forward(fit_vocabulary(out.logits, self._vocabulary_size), out.hidden_NKD).rows(),
    )
    decoder = build_decoder(ModelPair(TableModel(3, seed=1), Holed(2, 16)), METHODS["chain block"])
    firsts = [
        decoder.generate(PROMPT, max_new_tokens=4, temperature=1.0, randomness=Randomness(seed)).tokens[1]
        for seed in range(200)
    ]
    law = target_law(TableModel(3, seed=1), PROMPT, 2, SamplingSettings(1.0))
    assert abs(firsts.count(0) / 200 - sum(p for text, p in law.items() if text[1] == 0)) > 0.2


@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("name", METHODS)
def test_a_target_that_says_nothing_is_refused_as_often_as_in_plain_decoding(name, heat):
    pair = ModelPair(Holed(4, 3), TableModel(3, seed=2))
    plain, law = law_of(pair, {"method": "autoregressive"}, heat), law_of(pair, METHODS[name], heat)
    assert total_variation(plain, law) < 1e-9


@pytest.mark.parametrize("name", METHODS)
def test_no_text_goes_on_where_the_target_says_nothing(name):
    """As `Randomness` draws, which is told of lost rows only afterwards."""
    target, served = Holed(4, 3), 0
    decoder = build_decoder(ModelPair(target, TableModel(3, seed=2)), METHODS[name])
    for seed in range(60):
        text = list(PROMPT)
        try:
            for step in decoder.stream(
                PROMPT, max_new_tokens=8, temperature=1.0, randomness=Randomness(seed), eos_token_id=[]
            ):
                text += step.tokens
            served += 1
        except ValueError as error:
            assert "not finite after" in str(error)
        assert all(target.logits(text[:end]).max().isfinite() for end in range(2, len(text)))
    assert 0 < served < 60


def test_a_rule_that_reads_lost_rows_is_caught(monkeypatch):
    """The wrong twin: laws of rows that are none."""
    pair = ModelPair(Holed(4, 3), TableModel(3, seed=2))
    plain = law_of(pair, {"method": "autoregressive"}, 1.0)
    assert 0.05 < plain[REFUSED] < 0.95, "both happen"
    monkeypatch.setattr(Verifier, "__call__", lambda self, tree, target_probs: self.rule(tree, target_probs))
    with pytest.raises((AssertionError, ValueError)):
        assert total_variation(plain, law_of(pair, METHODS["chain block"], 1.0)) < 1e-3


@pytest.mark.parametrize("name", sorted(VERIFIERS))
@pytest.mark.parametrize("worth", [math.nan, math.inf])
def test_every_rule_takes_a_lost_row_for_a_leaf(name, worth):
    """What it says of the other rows is what it says of the tree without that row's children, and only it is refused."""
    rule, generator = VERIFIERS[name], torch.Generator().manual_seed(0)
    parents = [-1, 0, 1, 2] if rule.chains_only else [-1, -1, 0, 0, 2]
    law = min(rule.lossless_for, key=lambda known: known is not DraftLaw.IID)
    probs, drafts = (torch.rand(len(parents) + 1, 5, generator=generator).softmax(1) for _ in range(2))

    def outcome(nodes, target):
        rows = [0, *(node + 1 for node in nodes)]
        tree = TokenTree(
            tokens=torch.tensor([0, 1, 2, 3, 4])[nodes],
            parents=torch.tensor([rows.index(parents[node] + 1) - 1 for node in nodes]),
            draft_probs=None if law is DraftLaw.DETERMINISTIC else drafts[rows],
            law=law,
        )
        return rule(tree, target[rows])

    everything = list(range(len(parents)))
    below = [node for node in everything if node > 0 and (rule.chains_only or parents[node] in (0, 2))]
    broken = probs.clone()
    broken[1, 2] = worth
    found, left = outcome(everything, broken), outcome([node for node in everything if node not in below], probs)
    rows = [0, *(node + 1 for node in everything if node not in below)]
    torch.testing.assert_close(found.stop[rows], left.stop)
    assert float(found.stop.sum()) == pytest.approx(1) and found.stop[1] > 0
    torch.testing.assert_close(found.residual(0), left.residual(0))
    with pytest.raises(NotFiniteError):
        found.residual(torch.tensor(1))
