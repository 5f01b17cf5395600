"""What a drafting policy is worth, by hand on three rows."""

import numpy as np
import pytest
import torch

from predictors.decision_rule import DecisionRule, LengthRule
from predictors.training.decision import Costs, Replay

# γ = 3; a draft pass costs a tenth of a target pass
ROWS = Replay(
    accepted_N=np.array([0, 2, 3]),
    confidence_NG=np.array([[0.2, 0.9, 0.9], [0.9, 0.8, 0.3], [0.9, 0.4, 0.9]]),
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
        rows = Replay(ROWS.accepted_N, ROWS.confidence_NG, Costs(cost))
        tokens = np.minimum(rows.accepted_N, grid) + 1
        best = (tokens.sum(axis=1) / (1 + cost * grid).sum(axis=1)).max()
        assert rows.value(rows.oracle()) == pytest.approx(best)


def test_what_branches_hide_is_not_paid_for():
    """Rows accept 0, 2 and 3; blocks of two are accepted whole in the last two, whose drafting is hidden in half of the cases."""
    rows = Replay(ROWS.accepted_N, ROWS.confidence_NG, Costs(draft=0.1, verify=0.05, hit=0.5))
    paid = (0.2 + 0.1 + 0.1) + 3 * 2 * 0.05
    assert rows.value(rows.static(2)) == pytest.approx((1 + 3 + 3) / (3 + paid))
    assert rows.cost(rows.confidence(0.5)).tolist() == pytest.approx([1 + 0.05 * 3 + 0.3, 1.1 + 0.15, 1.05 + 0.1])
    with pytest.raises(ValueError, match=r"hit in \[0, 1\]"):
        Costs(draft=0.1, hit=1.5)


def test_accepted_beyond_gamma_counts_up_to_what_was_submitted():
    rows = Replay(np.array([5]), np.array([[0.9, 0.9]]), Costs(0.1))
    assert rows.value(rows.static(2)) == pytest.approx(3 / 1.2)
    assert rows.oracle().submitted.tolist() == [2]
