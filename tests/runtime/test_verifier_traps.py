"""Every known way to be lossy, written down and caught: the wrong twin misses the target's law where the right one has it."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from runtime.audit.tables import TableModel
from runtime.randomness import Randomness
from runtime.tree import DraftLaw, TokenTree, chain_tree
from runtime.verification import VERIFIERS, draw_verdict
from tests.trees import (
    EXACT,
    MISSED,
    certainly,
    delayed_trees,
    deterministic_tree,
    distinct_trees,
    grown_trees,
    largest_error,
    norm,
    outcome,
    probability,
    walk,
)

TARGET, DRAFT = TableModel(3, seed=6), TableModel(3, seed=7, sharpness=0.7)


def error(trees, rule):
    return largest_error(trees, TARGET, rule, horizon=3)


delayed = partial(delayed_trees, DRAFT, 2, 1, 1)
chains = partial(delayed_trees, DRAFT, 1, 0, 2)
rollouts = partial(delayed_trees, DRAFT, 2, 0, 2)
distinct = partial(distinct_trees, DRAFT, [2, 1])


def likely_tree(config):
    return [(deterministic_tree(DRAFT, config, with_laws=True), 1.0)]


def trunk_per_path(tree, target):
    """Like the functions below: what a tree was drawn as, misunderstood."""
    return replace(tree, draws=torch.cat([tree.draws[:1], tree.draws]))


def once_each(tree, target):
    return replace(tree, draws=torch.tensor(list(dict.fromkeys(tree.draws.tolist()))))


def by(score, tree, target):
    """Siblings by descending score of (p, q)."""
    parents, tokens = tree.parents[tree.draws] + 1, tree.tokens[tree.draws]
    scores = score(target[parents, tokens], tree.draft_probs[parents, tokens])
    return replace(tree, draws=tree.draws[scores.argsort(descending=True, stable=True)])


def mislabelled(tree, target, law=None, q=lambda law: law):
    return replace(tree, law=law or tree.law, draft_probs=q(tree.draft_probs))


by_draft, by_ratio = partial(by, lambda p, q: q), partial(by, lambda p, q: p / q)
as_iid, as_distinct = (partial(mislabelled, law=law) for law in (DraftLaw.IID, DraftLaw.WITHOUT_REPLACEMENT))
colder = partial(mislabelled, q=lambda q: (q.log() / 0.7).softmax(-1))
unfiltered = partial(mislabelled, q=lambda q: 0.9 * q + 0.1 / 3)
greedy_chain, top_tree = partial(likely_tree, [1, 1]), partial(likely_tree, [2, 1])
CHANGES = [
    ("trunk counted per path", trunk_per_path, delayed, ["spectr", "khisti", "specinfer", "traversal"]),
    ("duplicates removed, same q", once_each, rollouts, ["traversal", "specinfer", "spectr", "khisti"]),
    ("sorted by q", by_draft, rollouts, ["specinfer", "traversal", "naive_tree", "hsd_multi_draft"]),
    ("sorted by p / q", by_ratio, rollouts, ["specinfer", "traversal", "naive_tree", "hsd_multi_draft"]),
    ("re-sorted by q", by_draft, distinct, ["rrs_without_replacement", "traversal"]),
    ("re-sorted by p / q", by_ratio, distinct, ["rrs_without_replacement", "traversal"]),
    ("q instead of Q_j", as_iid, distinct, ["specinfer", "traversal", "spectr", "hsd_multi_draft"]),
    ("argmax drafts, softmax q", as_iid, greedy_chain, ["tokenwise", "block", "traversal"]),
    ("top-k drafts, softmax q", as_distinct, top_tree, ["rrs_without_replacement", "traversal"]),
    ("q at another temperature", colder, chains, ["tokenwise", "block"]),
    ("q before its filter", unfiltered, rollouts, ["specinfer", "spectr", "khisti"]),
]


@pytest.mark.parametrize("label, change, drafts, name", [(*case, name) for *case, names in CHANGES for name in names])
def test_changed_draws_are_lossy(label, change, drafts, name):
    trees = list(drafts())
    assert error(trees, lambda tree, target: VERIFIERS[name](change(tree, target), target)) > MISSED
    if trees[0][0].law in VERIFIERS[name].lossless_for:
        assert error(trees, VERIFIERS[name]) < EXACT


@pytest.mark.parametrize("name", ["traversal", "rrs_without_replacement"])
def test_duplicates_may_be_removed_if_q_is_renormalised(name):
    """Section 6, mode (ii)."""
    rule = VERIFIERS[name]
    assert error(rollouts(), lambda tree, target: rule(as_distinct(once_each(tree, target), target), target)) < EXACT


def likely(path):
    return probability(DRAFT, path[-1:], path[:-1]) > 0.4


def discard_and_stop(growth):
    """A drafting program, like those below; section 9 says which are allowed."""
    path = growth.sample(())
    while len(path) < 3 and likely(path):
        growth.trie.draw(path)
        path = growth.sample(path)


def keep_and_stop(growth):
    path = growth.draw(())
    while len(path) < 2 and likely(path):
        path = growth.draw(path)


def retract(growth):
    """The second token decides over the first."""
    second = growth.sample(first := growth.sample(()))
    if likely(second):
        growth.trie.draw(first)
        growth.trie.draw(second)


def best_of_two(growth):
    growth.trie.draw(max(growth.sample(()), growth.sample(()), key=lambda path: probability(DRAFT, path)))


def discard_candidates(growth):
    for path in (growth.sample(()), growth.sample(())):
        if likely(path):
            growth.trie.draw(path)


def best_nodes(growth):
    """The three likeliest of four sampled nodes."""
    first = [growth.sample(()), growth.sample(())]
    paths = [*first, *(growth.sample(path) for path in first)]
    kept = sorted(range(4), key=lambda place: probability(DRAFT, paths[place]))[1:]
    for place in sorted(kept):
        growth.trie.draw(paths[place])


def expand_best(growth):
    growth.draw(max(growth.draw(()), growth.draw(()), key=lambda path: probability(DRAFT, path)))


def another_after_likely(growth):
    if likely(growth.draw(())):
        growth.draw(growth.draw(()))


CHAIN_RULES = ["tokenwise", "block"]
SEQUENTIAL = ["specinfer", "naive_tree", "traversal", "hsd_multi_draft"]
PLANNED = ["spectr", "khisti"]
FORBIDDEN = {
    discard_and_stop: [*CHAIN_RULES, *SEQUENTIAL, *PLANNED],
    retract: [*CHAIN_RULES, *SEQUENTIAL, *PLANNED],
    best_of_two: [*CHAIN_RULES, *SEQUENTIAL, *PLANNED],
    discard_candidates: [*SEQUENTIAL, *PLANNED],
    best_nodes: [*SEQUENTIAL, *PLANNED],
    another_after_likely: PLANNED,
}
ALLOWED = {
    keep_and_stop: ["nss", *CHAIN_RULES, *SEQUENTIAL, *PLANNED],
    expand_best: ["nss", *SEQUENTIAL, *PLANNED],
    another_after_likely: ["nss", *SEQUENTIAL],
    **{program: ["nss"] for program in FORBIDDEN if program is not another_after_likely},
}


@pytest.mark.parametrize("program, name", [(program, name) for program in FORBIDDEN for name in FORBIDDEN[program]])
def test_forbidden_controllers_are_lossy(program, name):
    assert error(grown_trees(DRAFT, program), VERIFIERS[name]) > MISSED


@pytest.mark.parametrize("program, name", [(program, name) for program in ALLOWED for name in ALLOWED[program]])
def test_allowed_controllers_are_lossless(program, name):
    """With naive sampling, which ignores q, even pruning."""
    assert error(grown_trees(DRAFT, program), VERIFIERS[name]) < EXACT


def second_after_likely():
    """Distinct draws, the second only after a likely first."""
    for tree, weight in distinct_trees(DRAFT, [2]):
        first = TokenTree(tree.tokens[:1], tree.parents[:1], tree.draws[:1], tree.draft_probs[:2], tree.law)
        yield tree if likely((tree.token_list[0],)) else first, weight


@pytest.mark.parametrize("name", ["rrs_without_replacement", "traversal", "naive_tree", "nss"])
def test_distinct_candidates_may_depend_on_earlier_ones(name):
    assert len({tree.num_nodes for tree, _ in second_after_likely()}) == 2
    assert error(second_after_likely(), VERIFIERS[name]) < EXACT


def accept_by_target(fallback):
    """Each candidate with P(c), struck out of P when rejected; then a token from ``fallback(p, P)``."""

    def solver(target, draft, tokens, without):
        law, pending, left = torch.zeros_like(target), 1.0, target
        for token in tokens:
            law[token] += pending * left[token]
            pending *= 1 - left[token]
            left = norm(left * (1 - certainly(token, len(left))))
        return law + pending * fallback(target, left)

    return solver


FALLBACKS = {  # (after the candidates, at leaves)
    "what is left": (lambda target, left: left, lambda target: target),
    "the original law": (lambda target, left: target, lambda target: target),
    "the argmax of what is left": (lambda target, left: (left == left.max()).double(), lambda target: target),
    "the argmax at leaves": (lambda target, left: left, lambda target: (target == target.max()).double()),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_fallback_after_candidates(name):
    """Specification of drafting, section 13, row 8."""
    fallback, leaf = FALLBACKS[name]

    def rule(tree, target):
        output = torch.zeros_like(target)
        walk(tree, target, accept_by_target(fallback), 0, 1.0, output)
        for row, draws in enumerate(tree.child_lists):
            if not draws:
                output[row] = output[row].sum() * leaf(target[row])
        return outcome(tree, output)

    missed = error(top_tree(), rule)
    assert missed < EXACT if name == "what is left" else missed > MISSED


@pytest.mark.parametrize("name", [name for name, rule in VERIFIERS.items() if DraftLaw.IID in rule.lossless_for])
@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_impossible_tokens_at_the_ends_of_the_uniform(name, uniform, monkeypatch):
    """Specification of drafting, section 13, row 11."""
    monkeypatch.setattr(torch, "rand", lambda shape, **options: torch.full(shape, uniform, dtype=torch.float64))
    target = torch.tensor([[0, 0.5, 0.5, 0]] * 2, dtype=torch.float64)
    draft = torch.tensor([[0.6, 0.2, 0, 0.2]] * 2, dtype=torch.float64)
    for token in (0, 1, 3):
        tree = chain_tree(torch.tensor([token]), draft)
        row, following = draw_verdict(VERIFIERS[name](tree, target), Randomness(0))
        assert all(target[0, emitted] > 0 for emitted in [*[token][:row], following])
    wrong = [target[0, 0] / (draft[0, 0] + 1e-8) >= uniform, target[0].cumsum(0)[0] >= uniform]  # u <= p/q, inverse CDF
    assert all(wrong) if uniform == 0 else not any(wrong)  # so at 0 they would emit token 0
