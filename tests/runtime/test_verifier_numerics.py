"""float32 laws, sharp and flat: every rule's outcome is the one of float64 laws, and never out of bounds."""

import dataclasses
import math
from functools import cache

import pytest
import torch

from runtime.tree import DraftLaw, TokenTree
from runtime.verification import ALIASES, VERIFIERS

SHAPES = {"chain": (1, 4), "three paths": (3, 3), "nine paths": (9, 2)}
VOCABULARY = 40


@cache
def random_case(shape, sharpness, near, seed, law=DraftLaw.IID):
    """A tree really drawn from float32 laws that are one-hot to flat, and target laws that are ``near`` to them or equal."""
    paths, depth = SHAPES[shape]
    generator = torch.Generator().manual_seed(seed)
    tokens, parents, draws, level = [], [], [], {-1: paths}
    rows = [(sharpness * torch.randn(VOCABULARY, generator=generator)).softmax(-1)]
    for _ in range(depth):
        following = {}
        for parent, count in level.items():
            left = rows[parent + 1].clone()
            for _ in range(min(count, int((left > 0).sum())) if law is DraftLaw.WITHOUT_REPLACEMENT else count):
                token = int(torch.multinomial(left, 1, generator=generator))
                known = [node for node in following if parents[node] == parent and tokens[node] == token]
                if not known:
                    tokens.append(token)
                    parents.append(parent)
                    rows.append((sharpness * torch.randn(VOCABULARY, generator=generator)).softmax(-1))
                node = known[0] if known else len(tokens) - 1
                draws.append(node)
                following[node] = following.get(node, 0) + 1
                if law is DraftLaw.WITHOUT_REPLACEMENT:
                    left[token] = 0
        level = following
    draft = torch.stack(rows)
    noise = torch.randn(draft.shape, generator=generator)
    target = (draft.log().clamp(min=-100) + near * sharpness * noise).softmax(-1) if near else draft.clone()
    as_tensor = [torch.tensor(some) for some in (tokens, parents, draws)]
    return TokenTree(*as_tensor, draft_probs=draft, law=law), target


READABLE = [
    (name, shape)
    for name, rule in VERIFIERS.items()
    for shape in SHAPES
    if name not in ALIASES and (shape == "chain" or not rule.chains_only)
]


@pytest.mark.parametrize("name, shape", READABLE)
@pytest.mark.parametrize("sharpness", [0.5, 5, 60, 400])
def test_float32_outcomes_are_those_of_float64(name, shape, sharpness):
    rule = VERIFIERS[name]
    for law in (DraftLaw.IID, DraftLaw.WITHOUT_REPLACEMENT):
        for seed in range(6 if law in rule.lossless_for else 0):
            for near in (0.0, 0.01, 1.0):
                tree, target = random_case(shape, sharpness, near, seed, law)
                outcome = rule(tree, target)
                exact = rule(dataclasses.replace(tree, draft_probs=tree.draft_probs.double()), target.double())
                assert bool(torch.isfinite(outcome.stop).all()) and bool((outcome.stop >= 0).all())
                torch.testing.assert_close(outcome.stop, exact.stop, atol=2e-4, rtol=0)
                assert 0 <= outcome.expected_accepted_length() <= max(tree.depths) + 1e-9
                for row in range(tree.num_nodes + 1):
                    if outcome.stop[row] > 1e-3:
                        assert bool(torch.isfinite(outcome.residual(row)).all())
                        torch.testing.assert_close(
                            outcome.residual(row).double(), exact.residual(row), atol=2e-3, rtol=0
                        )


def test_spectr_where_laws_are_equal_and_one_hot():
    """ρ rounds to 1 in float32 there, and 1 - p_acc to 0: it once gave this branch nearly all of the outcome."""
    root = torch.tensor([[0.2, 0.8, 0, 0, 0], [0.8, 0.2, 0, 0, 0]])
    one_hot, flat = torch.eye(5)[3], torch.full((5,), 0.2)
    tree = TokenTree(
        tokens=torch.tensor([0, 3]),
        parents=torch.tensor([-1, 0]),
        draws=torch.tensor([0, 0, 1, 1]),
        draft_probs=torch.stack([root[1], one_hot, flat]),
    )
    stop = VERIFIERS["spectr"](tree, torch.stack([root[0], one_hot, flat])).stop
    torch.testing.assert_close(stop, torch.tensor([0.72468, 0, 0.27532], dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("rest", [1e-3, 1e-12, 1e-16, 1e-25, 1e-35])
@pytest.mark.parametrize("draws", [2, 3, 4])
@pytest.mark.parametrize("name", ["rrs_without_replacement", "traversal", "naive_tree", "nss"])
def test_distinct_draws_from_sharp_laws_are_lossless(name, draws, rest, dtype, bound):
    """What a likely draw leaves of q is far below its rounding, and the next draw comes from it all the same."""
    target = torch.tensor([0.1, 0.3, 0.2, 0.4], dtype=dtype)
    draft = torch.tensor([1.0, rest, 0.7 * rest, 0.5 * rest**1.1], dtype=torch.float64)
    draft = (draft / draft.sum()).to(dtype)
    output = torch.zeros(4, dtype=torch.float64)
    for tokens, share in ordered_draws(draft.tolist(), draws):
        tree = TokenTree(
            tokens=torch.tensor(tokens),
            parents=torch.full((len(tokens),), -1),
            draft_probs=draft.expand(len(tokens) + 1, -1),
            law=DraftLaw.WITHOUT_REPLACEMENT,
        )
        law = VERIFIERS[name](tree, target.expand(len(tokens) + 1, -1))
        output += share * law.stop[0] * law.residual(0).double()
        for node, token in enumerate(tokens):
            output[token] += share * law.stop[node + 1]
    torch.testing.assert_close(output, target.double(), atol=bound, rtol=0)


def ordered_draws(weights, count, drawn=(), share=1.0):
    """Every ordered list of ``count`` tokens without replacement (fewer if the rest is impossible), with its probability."""
    left = {token: weight for token, weight in enumerate(weights) if weight > 0 and token not in drawn}
    if len(drawn) == count or not left:
        yield list(drawn), share
        return
    for token, weight in left.items():
        yield from ordered_draws(weights, count, (*drawn, token), share * weight / math.fsum(left.values()))


def test_a_rejected_draw_may_leave_nothing():
    """Rounding alone lets the draw be rejected with certain mass 0: the walk ends there instead of dividing by it."""
    tree = TokenTree(
        tokens=torch.tensor([1]),
        parents=torch.tensor([-1]),
        draws=torch.tensor([0, 0]),
        draft_probs=torch.tensor([[1.0, 1e-7, 0.0], [1.0, 0.0, 0.0]]),
    )
    law = VERIFIERS["hsd_multi_draft"](tree, torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    assert bool(torch.isfinite(law.stop).all()) and bool(torch.isfinite(law.residual(0)).all())


def test_long_chains_are_walked_without_recursion():
    laws = torch.full((3001, 3), 1 / 3)
    tree = TokenTree(tokens=torch.zeros(3000, dtype=torch.int64), parents=torch.arange(-1, 2999), draft_probs=laws)
    assert float(VERIFIERS["traversal"](tree, laws).stop[-1]) == pytest.approx(1)
