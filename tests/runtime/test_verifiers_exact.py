"""One contract for all verifiers: on every draft they are lossless for, the output's law is the target's own, by enumeration."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime.audit.enumeration import enumerate_outcomes, summed
from runtime.audit.tables import TableModel
from runtime.laws import processed_law
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree, chain_tree
from runtime.verification import ALIASES, VERIFIERS, draw_verdict
from tests.trees import (
    PAIRS,
    delayed_trees,
    deterministic_tree,
    distinct_trees,
    expected_length,
    greedy,
    grown_trees,
    joint,
    largest_error,
    laws,
    node_paths,
    striped_trees,
    unmerged_trees,
)

TOLERANCE = 1e-12
END = 0
RULES = {name: verifier for name, verifier in VERIFIERS.items() if name not in ALIASES}
IID, WITHOUT_REPLACEMENT, DETERMINISTIC = DraftLaw.IID, DraftLaw.WITHOUT_REPLACEMENT, DraftLaw.DETERMINISTIC


def ended_rollouts(growth):
    """Two rollouts of two tokens; the end token is drafted but not extended."""
    paths = [growth.draw(()), growth.draw(())]
    for path in paths:
        if path[-1] != END:
            growth.draw(path)


def likely(draft, config, with_laws):
    return [(deterministic_tree(draft, config, with_laws), 1.0)]


DRAFTS = {  # draft law, length, trees of a draft model
    "chain": (IID, 3, lambda draft: delayed_trees(draft, 1, 1, 2)),
    "likely chain": (DETERMINISTIC, 3, lambda draft: likely(draft, [1, 1, 1], with_laws=True)),
    "distinct chain": (WITHOUT_REPLACEMENT, 2, lambda draft: distinct_trees(draft, [1, 1])),
    "rollouts": (IID, 2, lambda draft: delayed_trees(draft, 2, 0, 2)),
    "three draws": (IID, 1, lambda draft: delayed_trees(draft, 3, 0, 1)),
    "delayed": (IID, 3, lambda draft: delayed_trees(draft, 2, 1, 2)),
    "long trunk": (IID, 3, lambda draft: delayed_trees(draft, 3, 2, 1)),
    "ended": (IID, 2, lambda draft: grown_trees(draft, ended_rollouts)),
    "unmerged": (IID, 2, lambda draft: unmerged_trees(draft, 2, 2)),
    "striped": (IID, 2, lambda draft: striped_trees(draft, 2)),
    "distinct": (WITHOUT_REPLACEMENT, 2, lambda draft: distinct_trees(draft, [2, 2])),
    "two distinct, then one": (WITHOUT_REPLACEMENT, 2, lambda draft: distinct_trees(draft, [2, 1])),
    "three distinct": (WITHOUT_REPLACEMENT, 1, lambda draft: distinct_trees(draft, [3])),
    "all distinct": (WITHOUT_REPLACEMENT, 2, lambda draft: distinct_trees(draft, [3, 1])),
    "likely": (DETERMINISTIC, 2, lambda draft: likely(draft, [2, 2], with_laws=False)),
    "likely, with laws": (DETERMINISTIC, 2, lambda draft: likely(draft, [2, 2], with_laws=True)),
}
LARGER = {4: ["rollouts", "striped", "distinct", "two distinct, then one"], 5: ["three draws", "three distinct"]}
LARGER_PAIRS = {size: (TableModel(size, seed=6), TableModel(size, seed=7, sharpness=0.7)) for size in LARGER}
WITH_GREEDY = [(model, greedy(model)) for model in PAIRS[1]]


@cache
def trees_of(draft, model):
    """The trees of a draft model, once for all verifiers."""
    return list(DRAFTS[draft][2](model))


def compatible(drafts=DRAFTS):
    for (name, verifier), draft in itertools.product(RULES.items(), drafts):
        if DRAFTS[draft][0] in verifier.lossless_for and (draft.endswith("chain") or not verifier.chains_only):
            yield name, draft


def assert_lossless(name, draft, target_model, draft_model):
    _, length, _ = DRAFTS[draft]
    assert largest_error(trees_of(draft, draft_model), target_model, VERIFIERS[name], length + 1) < TOLERANCE


@pytest.mark.parametrize("name, draft", compatible())
def test_output_law_is_the_targets(name, draft):
    for pair in PAIRS:
        assert_lossless(name, draft, *pair)


@pytest.mark.parametrize("size, name, draft", [(size, *case) for size in LARGER for case in compatible(LARGER[size])])
def test_larger_vocabularies(size, name, draft):
    """With three tokens two rejections leave one, and some faults are invisible."""
    assert_lossless(name, draft, *LARGER_PAIRS[size])


@pytest.mark.parametrize("alias, name", ALIASES.items())
def test_an_alias_is_the_same_rule(alias, name):
    """So what is shown of one name holds for the other."""
    assert VERIFIERS[alias].rule is VERIFIERS[name].rule
    assert replace(VERIFIERS[alias], name=name) == VERIFIERS[name]


def test_toy_pairs_are_hard():
    """Impossible tokens on either side, duplicated draws, and laws that depend on the history."""
    target, draft = (laws(model, [(), (0,), (1,), (2,)]) for model in PAIRS[0])
    assert bool(((target == 0) & (draft > 0)).any()) and bool(((target > 0) & (draft == 0)).any())
    assert float((target[1] - target[2]).abs().max()) > 0.1 and float((draft[1] - draft[2]).abs().max()) > 0.1
    assert any(len(tree.draws) > tree.num_nodes for tree, _ in trees_of("rollouts", PAIRS[0][1]))


@pytest.mark.parametrize("name, draft", compatible(["chain", "distinct chain", "rollouts", "distinct"]))
def test_greedy_target_and_greedy_draft(name, draft):
    for pair in itertools.product(*WITH_GREEDY):
        assert_lossless(name, draft, *pair)


@pytest.mark.parametrize("name, draft", compatible(["chain", "rollouts", "distinct", "likely"]))
def test_expected_length_is_that_of_verdicts(name, draft):
    trees = trees_of(draft, PAIRS[0][1])
    total = 0.0
    for tree, weight in trees:
        law = VERIFIERS[name](tree, laws(PAIRS[0][0], node_paths(tree)))
        for (row, _), share in enumerate_outcomes(lambda chance, law=law: draw_verdict(law, chance)):
            total += weight * share * tree.depths[row]
    assert total == pytest.approx(expected_length(trees, PAIRS[0][0], VERIFIERS[name]), abs=TOLERANCE)
    assert total > 0.1


@pytest.mark.parametrize("name, draft", compatible([draft for draft in DRAFTS if draft != "likely"]))
def test_rows_without_draws_hold_anything(name, draft):
    law = DRAFTS[draft][0]
    for tree, _ in trees_of(draft, PAIRS[0][1])[::10]:
        drawn_from = torch.tensor([len(draws) > 0 for draws in tree.child_lists]).unsqueeze(1)
        filled = torch.where(drawn_from & (law is not DETERMINISTIC), tree.draft_probs, torch.nan)
        target = laws(PAIRS[0][0], node_paths(tree))
        clean, odd = (VERIFIERS[name](t, target) for t in (tree, replace(tree, draft_probs=filled)))
        assert torch.equal(clean.stop, odd.stop)
        assert all(torch.equal(clean.residual(row), odd.residual(row)) for row in range(tree.num_nodes + 1))


@pytest.mark.parametrize("name", VERIFIERS)
def test_empty_tree(name):
    target = laws(PAIRS[0][0], [()])
    drawn = replace(EMPTY_TREE, law=IID, draft_probs=torch.full_like(target, torch.nan))
    trees = [EMPTY_TREE] + [drawn] * (IID in VERIFIERS[name].lossless_for)
    for tree in trees:
        law = VERIFIERS[name](tree, target)
        assert law.stop.tolist() == [1.0] and torch.equal(law.residual(0), target[0])
        assert law.expected_accepted_length() == 0


def test_a_verdict_is_two_draws():
    tree, _ = trees_of("chain", PAIRS[1][1])[0]
    law, draws = VERIFIERS["block"](tree, laws(PAIRS[1][0], node_paths(tree))), set()
    found = summed(enumerate_outcomes(lambda chance: (draw_verdict(law, chance), draws.add(chance.taken))[0]))
    assert draws == {2}
    for (row, token), share in found.items():
        assert share == pytest.approx(float(joint(law)[row, token]), abs=TOLERANCE)


def test_trees_of_wrong_shapes_are_refused():
    siblings, node, two = torch.tensor([-1, -1]), torch.tensor([-1]), laws(PAIRS[0][0], [(), (0,)])
    with pytest.raises(ValueError, match="has 2 rows, expected N \\+ 1 = 3"):
        VERIFIERS["traversal"](TokenTree(torch.tensor([0, 1]), siblings, draft_probs=two[[0, 0, 1]]), two)
    with pytest.raises(ValueError, match="without its distribution"):
        TokenTree(torch.tensor([0]), node)
    with pytest.raises(ValueError, match="draft_probs has 1 rows"):
        TokenTree(torch.tensor([0]), node, draft_probs=two[:1])
    with pytest.raises(ValueError, match="node 0 has parent 1"):
        _ = TokenTree(torch.tensor([0, 1]), torch.tensor([1, -1]), draft_probs=two[[0, 0, 1]]).depths
    twice = TokenTree(torch.tensor([1]), node, torch.tensor([0, 0]), two, WITHOUT_REPLACEMENT)
    with pytest.raises(ValueError, match="drawn twice under one node"):
        VERIFIERS["traversal"](twice, two)


KINDS = list(itertools.product(VERIFIERS, DraftLaw))


def random_laws(rows, generator, zeros):
    weights = torch.rand(rows, 8, generator=generator, dtype=torch.float64) ** 4 + 1e-6
    weights[:, 1:] *= torch.rand(rows, 7, generator=generator) > zeros
    return weights / weights.sum(1, keepdim=True)


def random_tree(kind, seed):
    """Any shape, drawn in any order; i.i.d. ones repeat nodes and siblings, and hold tokens that cannot have been drawn."""
    generator = torch.Generator().manual_seed(seed)
    iid, size = kind is IID, 1 + seed % 7
    parents = [int(torch.randint(-1, node, (1,), generator=generator)) if node else -1 for node in range(size)]
    distinct, repeated = torch.randperm(8, generator=generator)[:size], torch.randint(3, (size,), generator=generator)
    draws = torch.randperm(size, generator=generator).repeat(2 if iid else 1)
    draft_probs = random_laws(size + 1, generator, zeros=0.3 if iid else 0)
    tokens = repeated if iid else distinct
    return TokenTree(tokens=tokens, parents=torch.tensor(parents), draws=draws, draft_probs=draft_probs, law=kind)


@pytest.mark.parametrize("name, kind", [(n, k) for n, k in KINDS if k in VERIFIERS[n].lossless_for])
def test_laws_are_laws(name, kind):
    for seed in range(28):
        tree = random_tree(kind, seed)
        if VERIFIERS[name].chains_only:
            tree = replace(tree, parents=torch.arange(-1, tree.num_nodes - 1), draws=None)
        target = random_laws(tree.num_nodes + 1, torch.Generator().manual_seed(100 + seed), zeros=0.3)
        law = VERIFIERS[name](tree, target)
        assert law.stop.dtype == torch.float64 and bool((law.stop >= 0).all())
        assert float(law.stop.sum()) == pytest.approx(1, abs=TOLERANCE)
        for row in range(tree.num_nodes + 1):
            assert bool((law.residual(row) >= 0).all())
            assert float(law.residual(row).sum()) == pytest.approx(1, abs=TOLERANCE)
            assert torch.equal(law.residual(row), law.residual(torch.tensor(row)))
            if law.stop[row] > 0:
                drafted = [target[tree.parent_list[node] + 1, tree.token_list[node]] > 0 for node in tree.path(row)]
                assert all(drafted) and not bool(law.residual(row)[target[row] == 0].any())


@pytest.mark.parametrize("name, kind", [(n, k) for n, k in KINDS if k not in VERIFIERS[n].lossless_for])
def test_lossy_combinations_are_refused_by_name(name, kind):
    tree = random_tree(kind, seed=5)
    with pytest.raises(ValueError, match=f"'{name}' is not lossless for {kind.name} drafts"):
        VERIFIERS[name](tree, laws(PAIRS[0][0], [()]).expand(tree.num_nodes + 1, 3))


@pytest.mark.parametrize("name", [name for name, rule in VERIFIERS.items() if rule.chains_only])
def test_chain_rules_refuse_branches(name):
    for tree in (random_tree(IID, seed=5), random_tree(WITHOUT_REPLACEMENT, seed=5)):
        with pytest.raises(ValueError, match="needs a chain"):
            VERIFIERS[name](tree, laws(PAIRS[0][0], [()]).expand(tree.num_nodes + 1, 3))


def close_laws(spread, shape=(3, 50_000)):
    """Target and draft [3, V] from bfloat16 logits that differ by about ``spread``: as the runtime has them, and in float64."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(shape, generator=generator)
    pair = (logits.bfloat16(), (logits + spread * torch.randn(shape, generator=generator)).bfloat16())
    settings = SamplingSettings(temperature=1.0)
    single = [processed_law(logits, settings) for logits in pair]
    assert all(law.dtype == torch.float32 for law in single)
    return single, [processed_law(logits.double(), settings) for logits in pair]


def drafted_pair(target, draft, name):
    """A chain of two, or two draws at the root: the first is to be tested, the second has half a chance after its rejection."""
    ratio, mass = target / draft, (target - draft).clamp(min=0).sum(1)
    likely = (target * draft)[0].topk(200).indices
    second = 1 if VERIFIERS[name].chains_only else 0
    tokens = [likely[ratio[0, likely].argmin()], (ratio[second] - 1 - mass[second] / 2).abs().argmin()]
    tree = chain_tree(torch.stack(tokens), draft)
    return tree if VERIFIERS[name].chains_only else replace(tree, parents=torch.tensor([-1, -1]))


@pytest.mark.parametrize("spread", [1e-3, 1e-2])
@pytest.mark.parametrize("name", ["tokenwise", "block", "traversal", "specinfer", "spectr", "khisti"])
def test_float32_laws_are_enough(name, spread):
    """The whole outcome within 1e-5 of float64 where the residual mass is small; rounded to bfloat16, the same laws miss."""
    single, double = close_laws(spread)
    tree = drafted_pair(*double, name)
    exact = joint(VERIFIERS[name](tree, double[0]))
    float32 = VERIFIERS[name](replace(tree, draft_probs=single[1]), single[0])
    rounded = [law.bfloat16().float() for law in single]
    bfloat16 = VERIFIERS[name](replace(tree, draft_probs=rounded[1]), rounded[0])
    assert float32.stop.dtype == torch.float64 and float32.residual(0).dtype == torch.float32
    assert float((joint(float32) - exact).abs().sum()) < 1e-5
    assert float((joint(bfloat16) - exact).abs().sum()) > 1e-3
