"""Verifiers against straightforward procedures of our own, against each other, and against their optimum."""

import itertools
from bisect import bisect_left
from functools import cache

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime.audit.tables import TableModel
from runtime.laws import processed_law
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import VERIFIERS, tournament
from runtime.verification.outcome import greedy_verdict
from tests.trees import (
    PAIRS,
    certainly,
    delayed_trees,
    deterministic_tree,
    distinct_trees,
    expected_length,
    joint,
    laws,
    node_paths,
    norm,
    probability,
    visit,
    walk,
)

TOLERANCE = 1e-12
STEPS = 1 << 50
IID_DRAFTS = [lambda draft: delayed_trees(draft, 2, 0, 2), lambda draft: delayed_trees(draft, 3, 1, 1)]
DISTINCT_DRAFTS = [lambda draft: distinct_trees(draft, [2, 2]), lambda draft: distinct_trees(draft, [3, 1])]


@cache
def of_draft(trees):
    """Its trees of every toy pair, with the target's laws."""
    return [(tree, laws(target, node_paths(tree))) for target, draft in PAIRS for tree, _ in trees(draft)]


def cases(drafts):
    return [case for trees in drafts for case in of_draft(trees)]


def assert_same(law, expected):
    torch.testing.assert_close(joint(law), expected, atol=TOLERANCE, rtol=0)


def naive(target, draft, tokens, without):
    accept = min(1.0, target[tokens[0]] / draft[tokens[0]])
    return accept * certainly(tokens[0], len(target)) + (1 - accept) * norm((target - draft).clamp(min=0))


def rejection(target, draft, tokens, without):
    if not tokens:
        return target
    first, *rest = tokens
    accept = min(1.0, target[first] / draft[first])
    following = norm(draft * (1 - certainly(first, len(draft)))) if without else draft
    left = norm((target - draft).clamp(min=0))
    rejected = rejection(left, following, rest, without) if accept < 1 else left
    return accept * certainly(first, len(target)) + (1 - accept) * rejected


def k_seq(target, draft, tokens, without):
    k = len(tokens)

    def beta(rho):
        return float(torch.minimum(target / rho, draft).sum())

    def beyond(step):
        rho = 1 + (k - 1) * step / STEPS
        return rho * beta(rho) - (1 - (1 - beta(rho)) ** k)

    rho = 1 + (k - 1) * bisect_left(range(STEPS), 0.0, key=beyond) / STEPS
    accept = (target / (rho * draft)).clamp(max=1)
    share = (1 - (1 - beta(rho)) ** k) / beta(rho) if beta(rho) > 0 else k
    law, pending = torch.zeros_like(target), 1.0
    for x in tokens:
        law[x], pending = law[x] + pending * accept[x], pending * (1 - accept[x])
    return law + pending * norm((target - torch.minimum(draft, target / rho) * share).clamp(min=0))


def canonical(target, draft, tokens, without):
    contest = tournament.run_tournament(target, draft, len(tokens))
    shares = zip(tokens, contest.winner(tokens), strict=True)
    return sum(share * naive(target, contest.law_V, [token], without) for token, share in shares if share > 0)


SOLVERS = {"nss": lambda target, *_: target, "naive_tree": naive, "spectr": k_seq, "khisti": canonical}
SOLVERS |= {"specinfer": rejection, "rrs_without_replacement": rejection}


@pytest.mark.parametrize("drafts", [IID_DRAFTS, DISTINCT_DRAFTS], ids=["i.i.d.", "without replacement"])
def test_traversal_is_visit(drafts):
    for tree, target in cases(drafts):
        output = torch.zeros_like(target)
        assert visit(tree, target, 0, target[0], output) < TOLERANCE
        assert_same(VERIFIERS["traversal"](tree, target), output)


PROCEDURES = [(naive, "naive_tree", DISTINCT_DRAFTS), (rejection, "rrs_without_replacement", DISTINCT_DRAFTS)]
PROCEDURES += [(SOLVERS[name], name, IID_DRAFTS) for name in SOLVERS if name != "rrs_without_replacement"]


@pytest.mark.parametrize("solver, name, drafts", PROCEDURES)
def test_top_down_rules_are_their_procedures(solver, name, drafts):
    for tree, target in cases(drafts):
        output = torch.zeros_like(target)
        walk(tree, target, solver, 0, 1.0, output)
        assert_same(VERIFIERS[name](tree, target), output)


ONE_PATH = {
    "tokenwise": ["spectr", "specinfer", "khisti", "naive_tree"],
    "block": ["hsd", "traversal", "hsd_multi_draft"],
}


@pytest.mark.parametrize("first, others", ONE_PATH.items())
def test_one_path(first, others):
    for tree, target in cases([lambda draft: delayed_trees(draft, 1, 1, 2)]):
        expected = joint(VERIFIERS[first](tree, target))
        for name in others:
            assert_same(VERIFIERS[name](tree, target), expected)


@pytest.mark.parametrize("config", [[2, 2], [3, 1, 1], [1, 1, 1]])
def test_deterministic_trees_need_no_draft(config):
    """Every rule is nss: P[reach v] is the path's probability, and E[τ] their sum."""
    for target_model, draft_model in PAIRS:
        tree = deterministic_tree(draft_model, config, with_laws=True)
        paths = node_paths(tree)
        target, chance = laws(target_model, paths), [probability(target_model, path) for path in paths]
        law = VERIFIERS["nss"](tree, target)
        for path, expected in zip(paths, chance, strict=True):
            under = [other[: len(path)] == path for other in paths]
            assert float(law.stop[under].sum()) == pytest.approx(expected, abs=TOLERANCE)
        assert law.expected_accepted_length() == pytest.approx(sum(chance) - 1, abs=TOLERANCE)
        for verifier in VERIFIERS.values():
            if DraftLaw.DETERMINISTIC in verifier.lossless_for and (tree.is_chain or not verifier.chains_only):
                assert_same(verifier(tree, target), joint(law))


def independent_model(law):
    model = TableModel(len(law), seed=0)
    model.table = torch.tensor(law, dtype=torch.float64).log().expand_as(model.table)
    return model


@pytest.mark.parametrize("length, tokenwise, block", [(1, 2 / 3, 2 / 3), (2, 10 / 9, 11 / 9)])
def test_published_toy(length, tokenwise, block):
    """Two tokens, p = (1/3, 2/3), q = (2/3, 1/3), of Sun et al. 2024."""
    target, draft = independent_model([1 / 3, 2 / 3]), independent_model([2 / 3, 1 / 3])
    for name, expected in (("tokenwise", tokenwise), ("block", block), ("hsd", block), ("traversal", block)):
        actual = expected_length(delayed_trees(draft, 1, 0, length), target, VERIFIERS[name])
        assert actual == pytest.approx(expected, abs=TOLERANCE)


def sum_of_prefix_weights(tree, target):
    ratios = [float(target[row, x] / tree.draft_probs[row, x]) for row, x in enumerate(tree.token_list)]
    return sum(itertools.accumulate(ratios, lambda weight, ratio: min(1.0, weight * ratio), initial=1.0)) - 1


@pytest.mark.parametrize("seed", range(4))
def test_block_is_the_optimum_of_one_path(seed):
    target, draft = TableModel(3, seed, zeros=seed % 2 == 0), TableModel(3, 50 + seed)
    trees = list(delayed_trees(draft, 1, 0, 3))
    best = sum(weight * sum_of_prefix_weights(tree, laws(target, node_paths(tree))) for tree, weight in trees)
    lengths = {n: expected_length(trees, target, v) for n, v in VERIFIERS.items() if DraftLaw.IID in v.lossless_for}
    assert [lengths["block"], max(lengths.values())] == pytest.approx([best, best], abs=TOLERANCE)
    assert lengths["tokenwise"] < best - 1e-4


def optimum(target, draft, num_draws):
    """min_H p(H) + 1 - q(H)^k."""
    subsets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(target))), dtype=torch.float64)
    return float((subsets @ target + 1 - (subsets @ draft) ** num_draws).min())


@pytest.mark.parametrize("name", ["nss", "naive_tree", "spectr", "specinfer", "khisti"])
@pytest.mark.parametrize("num_draws", [1, 2, 3])
def test_no_acceptance_rate_is_above_the_optimum(name, num_draws):
    for seed in range(10):
        target, draft = TableModel(4, seed, zeros=seed > 1), TableModel(4, 60 + seed, zeros=seed > 2)
        rate = expected_length(delayed_trees(draft, num_draws, 0, 1), target, VERIFIERS[name])
        assert rate <= optimum(*(laws(model, [()])[0] for model in (target, draft)), num_draws) + TOLERANCE


# At temperature 0 every lossless rule follows the target's own tokens: its law is what the shortcut says.


def random_trees(law, generator):
    """Random trees over four tokens whose siblings differ; sampled ones with one-hot and with soft laws."""
    for soft in (False, True):
        for _ in range(60):
            tokens, parents = [], []
            for parent in [-1, -1, 0, 0, 1, 2, 3][: int(torch.randint(1, 8, (), generator=generator))]:
                used = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
                tokens.append(next(t for t in torch.randperm(4, generator=generator).tolist() if t not in used))
                parents.append(parent)
            draft = torch.rand(len(tokens) + 1, 4, generator=generator, dtype=torch.float64) + 0.05
            draft = draft / draft.sum(1, keepdim=True)
            if not soft and law is DraftLaw.IID and len(set(parents)) == len(parents):  # a chain of a greedy draft
                draft = torch.nn.functional.one_hot(torch.tensor([*tokens, 0]), 4).double()
            probs = None if law is DraftLaw.DETERMINISTIC else draft
            yield TokenTree(tokens=torch.tensor(tokens), parents=torch.tensor(parents), draft_probs=probs, law=law)


LOSSLESS = [(name, law) for name, verifier in VERIFIERS.items() for law in sorted(verifier.lossless_for, key=str)]


@pytest.mark.parametrize("name, law", LOSSLESS, ids=str)
def test_every_lossless_rule_agrees(name, law):
    verifier, generator = VERIFIERS[name], torch.Generator().manual_seed(0)
    accepted = set()
    for tree in random_trees(law, generator):
        if verifier.chains_only and not tree.is_chain:
            continue
        logits = torch.randn(tree.num_nodes + 1, 4, generator=generator, dtype=torch.float64)
        follow = int(torch.randint(0, tree.num_nodes + 1, (), generator=generator))
        for node in tree.path(follow):  # a target that goes some way down the tree
            logits[tree.parent_list[node] + 1, tree.token_list[node]] += 10
        row, token = greedy_verdict(tree, logits)
        outcome = verifier(tree, processed_law(logits, SamplingSettings(0.0)))
        emitted = {}
        for stop, mass in enumerate(outcome.stop.tolist()):
            for last, share in enumerate(outcome.residual(stop).tolist()):
                text = (*(tree.token_list[node] for node in tree.path(stop)), last)
                emitted[text] = emitted.get(text, 0.0) + mass * share
        expected = (*(tree.token_list[node] for node in tree.path(row)), token)
        assert emitted[expected] == pytest.approx(1, abs=1e-9)
        accepted.add(tree.depths[row])
    assert len(accepted) >= (2 if verifier.chains_only else 3)
