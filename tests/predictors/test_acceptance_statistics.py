"""Acceptance statistics: by hand, recovered from simulated rounds, and the laws they give for chains of any length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.latency.throughput import AcceptanceStatistics, iid_accepted_law, truncated_law

untimed = settings(deadline=None, derandomize=True)

# ten rounds drafted at γ_max = 3: 4 accepted none, 3 one, 1 two, 2 all three
BY_HAND = AcceptanceStatistics([[4, 3, 1, 2]])
# and seven at γ_max = 1: 2 accepted none, 5 the one
TWO_LENGTHS = AcceptanceStatistics([[4, 3, 1, 2], [2, 5]])


def test_rate_by_hand():
    assert BY_HAND.rate == pytest.approx((3 + 2 + 6) / ((3 + 2 + 6) + (4 + 3 + 1)))
    assert TWO_LENGTHS.rate == pytest.approx((11 + 5) / (11 + 5 + 8 + 2))


def test_acceptance_by_depth_by_hand():
    assert BY_HAND.by_depth.tolist() == pytest.approx([6 / 10, 3 / 6, 2 / 3])
    assert TWO_LENGTHS.by_depth.tolist() == pytest.approx([(6 + 5) / (10 + 7), 3 / 6, 2 / 3])
    assert np.isnan(AcceptanceStatistics([[5, 0, 0]]).by_depth).tolist() == [False, True]


def test_accepted_laws_by_hand():
    assert BY_HAND.accepted_law(3).tolist() == pytest.approx([0.4, 0.3, 0.1, 0.2])
    assert BY_HAND.accepted_law(1).tolist() == pytest.approx([0.4, 0.6])
    assert BY_HAND.accepted_law(0).tolist() == pytest.approx([1])
    alpha = 11 / 19
    first = 11 / 17
    assert TWO_LENGTHS.accepted_law(2).tolist() == pytest.approx([1 - first, first / 2, first / 2])
    beyond = BY_HAND.accepted_law(4)  # depth 4 was never tested
    assert beyond.tolist() == pytest.approx([0.4, 0.3, 0.1, 0.2 * (1 - alpha), 0.2 * alpha])


@untimed
@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any), st.data())
def test_the_measured_law_of_one_histogram_is_the_histogram_cut(counts, data):
    gamma = data.draw(st.integers(0, len(counts) - 1))
    expected = truncated_law(np.array(counts) / sum(counts), gamma)
    assert AcceptanceStatistics([counts]).accepted_law(gamma).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


@untimed
@given(st.lists(st.integers(1, 50), min_size=2, max_size=9))
def test_the_rate_maximises_the_likelihood(counts):
    def log_likelihood(alpha):
        return float(counts @ np.log(iid_accepted_law(alpha, len(counts) - 1)))

    rate = AcceptanceStatistics([counts]).rate
    assert log_likelihood(rate) > max(log_likelihood(rate * 0.99), log_likelihood(1 - (1 - rate) * 0.99))


@pytest.mark.parametrize("alpha", [0.3, 0.66, 0.94])
def test_rate_is_recovered_from_simulated_rounds(alpha):
    rng = np.random.default_rng(7)
    accepted = np.cumprod(rng.random((200_000, 2)) < alpha, axis=1).sum(axis=1)
    counts = np.bincount(accepted, minlength=3).tolist()
    assert AcceptanceStatistics([counts]).rate == pytest.approx(alpha, abs=0.004)
    # the wrong variant, which takes a round that accepted everything for one that ended in a rejection
    assert accepted.sum() / (accepted.sum() + len(accepted)) != pytest.approx(alpha, abs=0.01)


@pytest.mark.parametrize("counts", [(), (3,), (0, 0, 0), (1, -1, 2)])
def test_a_histogram_must_hold_rounds(counts):
    with pytest.raises(ValueError, match="must count rounds by 0 to γ_max|no rounds to learn acceptance from"):
        AcceptanceStatistics([counts])


def test_accepted_laws_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="gamma must be >= 0, got -1"):
        BY_HAND.accepted_law(-1)
    with pytest.raises(ValueError, match="alpha must lie in"):
        iid_accepted_law(1.1, 2)
    with pytest.raises(ValueError, match="does not reach gamma=2"):
        truncated_law([0.5, 0.5], 2)
    with pytest.raises(ValueError, match="sum to 1"):
        truncated_law([0.5, 0.4], 1)


@untimed
@given(st.floats(0, 1), st.integers(0, 8), st.integers(0, 8))
def test_a_shorter_chains_law_is_the_longer_ones_cut(alpha, gamma, more):
    cut = truncated_law(iid_accepted_law(alpha, gamma + more), gamma)
    assert cut.tolist() == pytest.approx(iid_accepted_law(alpha, gamma).tolist(), abs=1e-12)
