"""The tournament's law, its use in a lossless rule and its weights, by enumeration of every list of draws."""

import itertools
from dataclasses import replace

import pytest
import torch

from runtime.verification.tournament import run_tournament
from tests.runtime.test_verifier_relations import optimum

CASES = [(3, 1, 5), (3, 3, 2), (3, 4, 5), (4, 2, 2), (4, 3, 3), (4, 4, 5), (5, 2, 5), (5, 3, 2), (5, 4, 3)]
TOLERANCE = 1e-12


def random_laws(size, seed):
    """Target and draft [V]; every second seed has zeros in both."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(2, size, generator=generator, dtype=torch.float64) ** 3
    if seed % 2:
        weights[torch.rand(weights.shape, generator=generator) < 0.4] = 0
        weights[torch.arange(2), torch.randint(size, (2,), generator=generator)] += 0.1
    return weights / weights.sum(1, keepdim=True)


def special_laws(size):
    """One-hot, equal, uniform (every rank tied) and disjoint laws."""
    target, draft = random_laws(size, 0)
    one_hot, uniform = torch.eye(size, dtype=torch.float64), torch.full((size,), 1 / size, dtype=torch.float64)
    left, right = torch.arange(size) < size // 2, torch.arange(size) >= size // 2
    yield from [(one_hot[0], draft), (target, one_hot[1]), (one_hot[0], one_hot[1]), (one_hot[1], one_hot[1])]
    yield from [
        (target, target),
        (uniform, uniform),
        (target * left / target[left].sum(), draft * right / draft[right].sum()),
    ]


def all_laws(size):
    return [*(random_laws(size, seed) for seed in range(12)), *special_laws(size)]


def lists(draft, num_draws):
    """Every list of draws with its probability, the impossible ones left out."""
    weights = draft.tolist()
    for tokens in itertools.product([token for token, weight in enumerate(weights) if weight > 0], repeat=num_draws):
        yield tokens, torch.tensor([weights[token] for token in tokens], dtype=torch.float64).prod()


def selected(tournament, tokens):
    """P[Z = z | tokens], [V]."""
    law = torch.zeros_like(tournament.law_V)
    return law.index_add_(0, torch.tensor(tokens), torch.tensor(tournament.winner(tokens), dtype=law.dtype))


def enumerated_law(tournament, draft):
    return sum(weight * selected(tournament, tokens) for tokens, weight in lists(draft, tournament.num_draws))


def output_law(tournament, target, selection):
    """B [V]: Naive verification with draft law q_I of a token drawn from ``selection``."""
    law = tournament.law_V
    accept = torch.where(law > 0, (target / law).clamp(max=1), 0.0)
    residual = (target - law).clamp(min=0)
    residual = residual / residual.sum() if residual.sum() > 0 else target
    return selection * accept + (selection * (1 - accept)).sum() * residual


@pytest.mark.parametrize("size, num_draws, top", CASES)
def test_law_and_rule_are_exact(size, num_draws, top):
    for target, draft in all_laws(size):
        tournament = run_tournament(target, draft, num_draws, top)
        assert float(tournament.law_V.sum()) == pytest.approx(1, abs=TOLERANCE)
        assert bool((tournament.law_V >= 0).all())
        (law, output), rate = torch.zeros(2, size, dtype=torch.float64), 0.0
        for tokens, weight in lists(draft, num_draws):
            selection = selected(tournament, tokens)
            conditional = output_law(tournament, target, selection)
            law += weight * selection
            output += weight * conditional
            rate += float(weight * conditional[list(set(tokens))].sum())
        torch.testing.assert_close(law, tournament.law_V, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(output, target, atol=TOLERANCE, rtol=0)
        best = optimum(target, draft, num_draws)
        assert rate <= best + TOLERANCE
        if num_draws == 1 or (num_draws == 2 and top >= size):
            assert rate == pytest.approx(best, abs=TOLERANCE)


def test_wrong_twins_fail():
    """Other weights or other ranks than the law's, and a token that is not Z, each miss by more than 1e-3."""
    missed_weights, missed_ranks, missed_token = [], [], []
    for seed in range(0, 12, 2):
        target, draft = random_laws(5, seed)
        tournament = run_tournament(target, draft, 3, top=3)
        swapped = [replace(part, weights_SS=torch.tensor(part.weights_SS).T.tolist()) for part in tournament.rounds]
        unranked = [replace(part, rank_V=torch.arange(5)) for part in tournament.rounds]
        for missed, rounds in ((missed_weights, swapped), (missed_ranks, unranked)):
            twin = replace(tournament, rounds=tuple(rounds))
            missed.append(float((enumerated_law(twin, draft) - twin.law_V).abs().max()))
        missed_token.append(float((output_law(tournament, target, draft) - target).abs().max()))
    assert min(missed_weights) > 1e-3 and min(missed_ranks) > 1e-3 and min(missed_token) > 1e-3


def test_float32_over_a_large_vocabulary():
    logits = 4 * torch.randn(2, 152064, generator=torch.Generator().manual_seed(0))
    target, draft = logits.softmax(1)
    tournament, double = run_tournament(target, draft, 4), run_tournament(target.double(), draft.double(), 4)
    assert tournament.law_V.dtype == torch.float32
    assert float(tournament.law_V.double().sum()) == pytest.approx(1, abs=1e-7)
    assert float((tournament.law_V - double.law_V).abs().sum()) < 1e-5
    assert sum(tournament.winner([7, 150000, 7, 3])) == pytest.approx(1, abs=TOLERANCE)


def test_wrong_counts_are_refused_and_top_is_clamped():
    target, draft = random_laws(4, 0)
    with pytest.raises(ValueError, match="num_draws is 0"):
        run_tournament(target, draft, 0)
    with pytest.raises(ValueError, match="2 tokens in a tournament of 3 draws"):
        run_tournament(target, draft, 3).winner([0, 1])
    for top, clamped in ((0, 2), (3, 3), (99, 4)):
        assert len(run_tournament(target, draft, 2, top).rounds[0].weights_SS) == clamped
    assert len(run_tournament(torch.ones(40) / 40, torch.ones(40) / 40, 2, 99).rounds[0].weights_SS) == 15
    assert run_tournament(torch.ones(1), torch.ones(1), 3).law_V.tolist() == [1.0]
