"""What a drafting policy is worth, by hand on three rows."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from predictors.decision_rule import DecisionRule, LengthRule
from predictors.latency import branch_parallel_latency
from predictors.training.decision import Costs, Play, Replay

# γ = 3; a draft pass costs a tenth of a target pass
ROWS = Replay(
    accepted_N=np.array([0, 2, 3]),
    confidence_NG=np.array([[0.2, 0.9, 0.9], [0.9, 0.8, 0.3], [0.9, 0.4, 0.9]]),
    survived_N=np.zeros(3, dtype=bool),
    costs=Costs(draft=0.1),
)


def test_static():
    assert ROWS.value(ROWS.static(0)) == 1
    assert ROWS.value(ROWS.static(2)) == pytest.approx((1 + 3 + 3) / (3 * 1.2))
    assert ROWS.value(ROWS.static(3)) == pytest.approx((1 + 3 + 4) / (3 * 1.3))


def test_confidence_pays_for_the_law_it_reads_and_drafts_at_least_one_token():
    play = ROWS.confidence(0.5)
    assert play.submitted.tolist() == [3, 2, 1]  # the first law's .2 is not tested
    assert play.passes.tolist() == [3, 3, 2]
    assert ROWS.value(play) == pytest.approx((1 + 3 + 2) / (1.3 + 1.3 + 1.2))


@pytest.mark.parametrize("reads_first_law, passes", [(False, 0), (True, 1)])
def test_hrad(reads_first_law, passes):
    play = ROWS.hrad(np.eye(3), DecisionRule(0.5), reads_first_law)
    assert play.submitted.tolist() == [0, 2, 3] and play.passes.tolist() == [passes, 3, 3]
    assert ROWS.value(play) == pytest.approx((1 + 3 + 4) / (1 + 0.1 * passes + 1.3 + 1.3))


@pytest.mark.parametrize("reads_first_law, none", [(False, 0), (True, 1)])
def test_length(reads_first_law, none):
    """Lengths 0, 1 and 3: as many tokens, as many passes, and the first law's where it was read for nothing."""
    play = ROWS.length(np.eye(4)[[0, 1, 3]], LengthRule("argmax", 0.1), reads_first_law)
    assert play.submitted.tolist() == [0, 1, 3] and play.passes.tolist() == [none, 1, 3]
    assert ROWS.value(play) == pytest.approx((1 + 2 + 4) / (1 + 0.1 * none + 1.1 + 1.3))
    sure = np.eye(4)[[0, 2, 3]]  # knows what will be accepted: the oracle, but for the pass that reads the first law
    assert ROWS.length(sure, LengthRule("expectation", 0.1), False).submitted.tolist() == ROWS.useful.tolist()
    assert ROWS.head(sure, LengthRule("argmax", 0.1), False).submitted.tolist() == [0, 2, 3]
    assert ROWS.value(ROWS.length(sure, LengthRule("argmax", 0.1), False)) == ROWS.value(ROWS.oracle())


def test_a_heads_play_follows_its_kind_of_rule():
    hrad = ROWS.head(np.eye(3), DecisionRule(0.5), True)
    assert hrad.submitted.tolist() == ROWS.hrad(np.eye(3), DecisionRule(0.5), True).submitted.tolist() == [0, 2, 3]


def test_thresholds_replace_the_argmax():
    probabilities = np.array([[0.5, 0.3, 0.2], [0.7, 0.1, 0.2], [0.4, 0.25, 0.35], [0.65, 0.0, 0.35]])
    rule = DecisionRule(0.5, none_probability=0.6, all_probability=0.3)
    assert rule.classes(torch.from_numpy(probabilities)).tolist() == [1, 0, 2, 0]
    assert DecisionRule(0.5).classes(torch.from_numpy(probabilities)).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="set both"):
        DecisionRule(0.5, none_probability=0.6)


def test_a_stop_never_comes_where_epsilon_is_zero():
    assert ROWS.confidence(0.0).passes.tolist() == [3, 3, 3] == ROWS.static(3).passes.tolist()


def test_the_oracle_is_the_best_of_all_plays():
    value = ROWS.value(ROWS.oracle())
    assert value == pytest.approx((1 + 3 + 4) / (1 + 1.2 + 1.3))
    grid = np.stack(np.meshgrid(*[np.arange(4)] * 3), axis=-1).reshape(-1, 3)
    for cost in (0.1, 0.5, 0.99, 1.0, 2.0):
        rows = replace(ROWS, costs=Costs(cost))
        tokens = np.minimum(rows.accepted_N, grid) + 1
        best = (tokens.sum(axis=1) / (1 + cost * grid).sum(axis=1)).max()
        assert rows.value(rows.oracle()) == pytest.approx(best)


PASSES = (1.0, 1.3, 1.4, 1.4)


@pytest.mark.parametrize("passes", [PASSES, (1.0, 2.9, 3.0, 3.1), (1.0, 0.2, 5.0, 0.1)])
@pytest.mark.parametrize("hit", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("draft", [0.05, 0.6, 1.7])
def test_no_play_beats_the_oracle_whatever_passes_cost(passes, hit, draft):
    """Also at the prices of a senseless profile. Submitting exactly what is accepted, which it once did, is no oracle there."""
    survived = np.array([False, False, True, True])
    for accepted in ([0, 2, 3, 1], [3, 1, 0, 2], [3, 3, 3, 0]):
        rows = Replay(np.array(accepted), np.full((4, 3), 0.9), survived, Costs(draft, passes, hit))
        best = max(rows.value(Play(np.array(play), np.array(play))) for play in product(range(4), repeat=4))
        assert rows.value(rows.oracle()) == pytest.approx(best)


def test_what_will_be_accepted_may_be_worth_less_than_a_static_length():
    rows = Replay(np.array([1, 1, 1]), np.full((3, 3), 0.9), np.zeros(3, bool), Costs(0.1, (1.0, 2.9, 3.0, 3.1)))
    naive = Play(rows.useful, rows.useful)
    assert rows.value(naive) < rows.value(rows.static(0)) <= rows.value(rows.oracle())


def test_what_branches_hide_is_not_paid_for():
    """Rows accept 0, 2 and 3, the last behind a branch that survived. Blocks of two: of the first stage's rounds one of two is
    accepted whole and half of those hit, of the second's all, and half hit. So both stages' shares are 2/3 and 1/3."""
    rows = replace(ROWS, survived_N=np.array([False, False, True]), costs=Costs(0.1, PASSES, hit=0.5))
    play = rows.static(2)
    assert rows.cost(play).tolist() == pytest.approx([1.4 + 0.2, 1.4 + 0.2, 1.4])
    share = 0.25 / (1 - 0.5 + 0.25)
    assert share == pytest.approx(1 / 3)
    expected = (2 / 3 * (1 + 3) / 2 + 1 / 3 * 3) / (2 / 3 * 1.6 + 1 / 3 * 1.4)
    assert rows.value(play) == pytest.approx(expected)
    mixed = rows.staged(rows.static(1), rows.static(3))
    assert mixed.submitted.tolist() == [1, 1, 3] and rows.cost(mixed).tolist() == pytest.approx([1.4, 1.4, 1.4])
    with pytest.raises(ValueError, match=r"hit in \[0, 1\]"):
        Costs(draft=0.1, hit=1.5)


def test_a_head_is_paid_for_where_its_rule_asks_it():
    rows = replace(ROWS, costs=Costs(0.1, decision=0.25))
    asking, settled = DecisionRule(0.5), DecisionRule(0.5, none_probability=1.01, all_probability=1.01)
    assert asking.reads_head and not settled.reads_head and DecisionRule(0.5, 1.01, 0.9).reads_head
    some = np.tile([0.0, 1.0, 0.0], (3, 1))
    asked, soft = (rows.hrad(some, rule, True) for rule in (asking, settled))
    assert asked.submitted.tolist() == soft.submitted.tolist() == rows.confidence(0.5).submitted.tolist()
    assert (rows.cost(asked) - rows.cost(soft)).tolist() == pytest.approx([0.25] * 3)
    assert rows.hrad(np.eye(3)[[0, 2, 0]], settled, True).submitted.tolist() == soft.submitted.tolist()
    mixed = replace(rows, survived_N=np.array([False, True, True])).staged(asked, soft)
    assert mixed.asked.tolist() == [1, 0, 0]
    assert rows.length(np.eye(4)[[0, 1, 3]], LengthRule("argmax", 0.1), False).asked == 1


def test_equal_stages_are_the_renewal_model():
    """Rows whose α^j are exact shares, the same in both stages: the specification's formula, per token."""
    alpha, pending, hit, draft = 0.5, 2, 0.8, 0.1
    accepted = np.array([0] * 4 + [1] * 2 + [2, 3])  # P(A >= j) = α^j for j <= 2
    survived = np.repeat([False, True], len(accepted))
    rows = Replay(np.tile(accepted, 2), np.full((16, 3), 0.9), survived, Costs(draft, (1.0,) * 4, hit))
    expected = branch_parallel_latency(alpha, pending, depth=3, hit=hit, draft_seconds=draft, target_seconds=1.0)
    assert 1 / rows.value(rows.static(pending)) == pytest.approx(expected)


def test_a_long_run_of_both_stages_is_worth_the_mixture():
    """Against a simulated chain of rounds, each with a row of its stage."""
    random = np.random.default_rng(0)
    accepted, survived = random.integers(0, 4, 40), np.repeat([False, True], 20)
    rows = Replay(accepted, np.full((40, 3), 0.9), survived, Costs(0.2, PASSES, hit=0.7))
    play = rows.staged(rows.static(1), rows.static(2))
    tokens, cost, stage, total = rows.tokens(play), rows.cost(play), False, np.zeros(2)
    for _ in range(200_000):
        row = int(random.integers(20)) + 20 * stage
        total += tokens[row], cost[row]
        stage = bool(accepted[row] >= play.submitted[row] and random.random() < 0.7)
    assert rows.value(play) == pytest.approx(total[0] / total[1], rel=5e-3)


def test_the_best_pair_is_the_best_of_all_pairs():
    random = np.random.default_rng(1)
    rows = Replay(random.integers(0, 4, 60), random.random((60, 3)), random.random(60) < 0.4, Costs(0.3, PASSES, 0.9))
    plays = [*map(rows.static, range(4)), *map(rows.confidence, (0.3, 0.5, 0.7))]
    values = [[rows.value(rows.staged(draft, retention)) for retention in plays] for draft in plays]
    assert rows.best_pair(plays) == np.unravel_index(np.argmax(values), (7, 7))
    draft, retention = rows.best_pair(plays)
    assert draft != retention, "one play for both would do: this tests little"
    chains = replace(rows, survived_N=np.zeros(60, dtype=bool), costs=Costs(0.3))
    best = int(np.argmax([chains.value(play) for play in plays]))
    assert chains.best_pair(plays) == (best, best)


def test_accepted_beyond_gamma_counts_up_to_what_was_submitted():
    rows = Replay(np.array([5]), np.array([[0.9, 0.9]]), np.array([False]), Costs(0.1))
    assert rows.value(rows.static(2)) == pytest.approx(3 / 1.2)
    assert rows.oracle().submitted.tolist() == [2]
