"""The tournament's law, its use in a lossless rule and its weights, by enumeration of every list of draws."""

import itertools
from dataclasses import replace

import pytest
import torch

from runtime.verification.tournament import _weights, run_tournament
from tests.runtime.test_verifier_relations import optimum

CASES = [
    (3, 1, 5),
    (3, 2, 5),
    (3, 3, 2),
    (3, 4, 5),
    (4, 2, 2),
    (4, 3, 3),
    (4, 4, 5),
    (5, 2, 5),
    (5, 2, 3),
    (5, 3, 2),
    (5, 4, 3),
]
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


def test_winner_credits_the_first_copy():
    target, draft = random_laws(4, 2)
    tournament = run_tournament(target, draft, 4)
    for tokens in itertools.product(range(4), repeat=4):
        shares = tournament.winner(tokens)
        assert sum(shares) == pytest.approx(1, abs=TOLERANCE) and min(shares) >= 0
        assert all(shares[place] == 0 for place in range(4) if tokens[place] in tokens[:place])
    assert tournament.winner([3, 3, 3, 3]) == [1, 0, 0, 0]
    single = run_tournament(target, draft, 1)
    assert single.law_V is draft and single.winner([2]) == [1]


def minimum_cut(supply, capacity):
    """The maximum flow from pairs to tokens, by duality: any set of tokens is kept, every pair not inside it is cut."""
    kept = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(capacity))), dtype=torch.float64)
    pairs = supply.triu(1)
    return float((kept @ capacity + pairs.sum() - (kept @ pairs * kept).sum(1)).min())


def flow_of(weights, supply, capacity):
    loads = (supply * weights).sum(1) - (supply * weights).diagonal()
    return float(torch.minimum(loads, capacity).sum())


def random_flow(size, seed):
    """Supplies and capacities with zeros, over up to 300 orders of magnitude, some of them subnormal."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(size + 1, size, generator=generator, dtype=torch.float64)
    values *= 10 ** (-[0, 0, 6, 300][seed % 4] * torch.rand(values.shape, generator=generator, dtype=torch.float64))
    values[torch.rand(values.shape, generator=generator) < 0.2] = 0
    values *= 1e-300 if seed % 8 == 3 else 1
    return values[:size] + values[:size].T, values[size] * (1 + seed % 3) * size / 2


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 15])
def test_weights_are_a_maximum_flow(size):
    better_rank_falls_short = 0
    for seed in range(24):
        supply, capacity = random_flow(size, seed)
        rounding = 1e-14 * float(supply.sum() + capacity.sum()) + 1e-320
        weights = torch.tensor(_weights(supply.tolist(), capacity.tolist()), dtype=torch.float64)
        assert bool(((weights >= 0) & (weights <= 1) & (weights + weights.T == 1)).all())
        best = minimum_cut(supply, capacity)
        assert flow_of(weights, supply, capacity) == pytest.approx(best, rel=0, abs=rounding)
        ranked = torch.ones_like(weights).triu(1)
        better_rank_falls_short += flow_of(ranked, supply, capacity) < best - 1e-3 * float(supply.sum())
    assert better_rank_falls_short > 5 or size < 3


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
