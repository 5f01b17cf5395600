"""Chain verifiers as pure laws: the specification's equalities, edge cases and numerics."""

import pytest
import torch

from runtime.tree import DraftLaw, TokenTree, chain_tree
from runtime.verification import VERIFIERS, draw_verdict
from tests.toys import Forking, enumerate_outcomes


def laws(count, size, seed, zeros=False):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(count, size, generator=generator, dtype=torch.float64) ** 3
    if zeros:
        weights[torch.rand(weights.shape, generator=generator) < 0.3] = 0
        weights[:, 0] += 1e-3
    return weights / weights.sum(1, keepdim=True)


def chain(tokens, draft):
    return chain_tree(torch.tensor(tokens), draft)


def test_block_by_hand():
    """P_1 = min(1, .3/.6) = .5; S_0 = Σ[p - q]_+ = .3, h_0 = 1; h_1 = P_1; so P(τ = 1) = .5."""
    target = torch.tensor([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]], dtype=torch.float64)
    draft = torch.tensor([[0.6, 0.3, 0.1], [0.0, 0.0, 0.0]], dtype=torch.float64)
    law = VERIFIERS["block"](chain([0], draft), target)
    torch.testing.assert_close(law.stop, torch.tensor([0.5, 0.5], dtype=torch.float64))
    torch.testing.assert_close(law.residual(0), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(law.residual(1), target[1])


@pytest.mark.parametrize("name", ["tokenwise", "block"])
def test_edge_cases(name):
    same = laws(3, 4, 0)
    law = VERIFIERS[name](chain([1, 2], same), same)  # p = q: accept everything, no 0/0
    torch.testing.assert_close(law.stop, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(law.residual(0), same[0])  # never reached but a law
    impossible = same.clone()
    impossible[0, 1] = 0
    impossible[0] /= impossible[0].sum()
    law = VERIFIERS[name](chain([1, 2], same), impossible)  # p(x_1) = 0: reject at once
    assert float(law.stop[0]) == 1
    assert float(law.residual(0)[1]) == 0
    empty = TokenTree(
        tokens=torch.empty(0, dtype=torch.int64), parents=torch.empty(0, dtype=torch.int64), law=DraftLaw.DETERMINISTIC
    )
    law = VERIFIERS[name](empty, same[:1])
    assert law.stop.tolist() == [1.0] and torch.equal(law.residual(0), same[0])
    assert law.expected_accepted_length() == 0


def test_branching_trees_and_wrong_shapes_are_refused():
    tree = TokenTree(tokens=torch.tensor([0, 1]), parents=torch.tensor([-1, -1]), draft_probs=laws(3, 4, 0))
    with pytest.raises(ValueError, match="needs a chain"):
        VERIFIERS["block"](tree, laws(3, 4, 1))
    with pytest.raises(ValueError, match="target_probs has 2 rows, expected N \\+ 1 = 3"):
        VERIFIERS["block"](tree, laws(2, 4, 1))
    with pytest.raises(ValueError, match="no drafted token without its distribution"):
        TokenTree(tokens=torch.tensor([0]), parents=torch.tensor([-1]))
    with pytest.raises(ValueError, match="draft_probs has 1 rows, expected"):
        TokenTree(tokens=torch.tensor([0]), parents=torch.tensor([-1]), draft_probs=laws(1, 4, 0))
    with pytest.raises(ValueError, match="node 0 has parent 1"):
        _ = TokenTree(tokens=torch.tensor([0, 1]), parents=torch.tensor([1, -1]), draft_probs=laws(3, 4, 0)).depths


def test_verdict_is_two_draws():
    target, draft = laws(3, 4, 0), laws(3, 4, 1)
    law = VERIFIERS["block"](chain([1, 2], draft), target)
    joint = {}
    draws = set()
    for outcome, probability in enumerate_outcomes(
        lambda chance: (draw_verdict(law, chance), draws.add(chance.taken))[0]
    ):
        joint[outcome] = joint.get(outcome, 0.0) + probability
    assert draws == {2}
    for (row, token), probability in joint.items():
        assert probability == pytest.approx(float(law.stop[row] * law.residual(row)[token]), abs=1e-12)


def test_tree_bookkeeping():
    tree = TokenTree(tokens=torch.tensor([5, 6, 7, 8]), parents=torch.tensor([-1, 0, 0, 2]), draft_probs=laws(5, 9, 0))
    assert tree.depths == [0, 1, 2, 2, 3]
    assert tree.path(0) == [] and tree.path(4) == [0, 2, 3]
    assert not tree.is_chain and tree.draws.tolist() == [0, 1, 2, 3]


def test_forking_refuses_rows_without_mass():
    with pytest.raises(AssertionError, match="without mass"):
        Forking([]).categorical(torch.zeros(3))
