"""Ratios and their intervals: by hand, undefined where they are, and covering the truth as often as they say."""

import numpy as np
import pytest

from pipelines.report.comparison import of_rates, rate, rate_ratio
from pipelines.report.section import UNDEFINED

T_1 = 12.7062  # of one degree of freedom, 97.5 %


def test_a_rate_by_hand():
    """Documents a (two items) and b; without each, the other's rate."""
    made = rate(["a", "b", "a"], [2.0, 6.0, 2.0], [1.0, 2.0, 1.0])
    error = np.sqrt(0.5 * ((3.0 - 2.5) ** 2 + (2.0 - 2.5) ** 2))
    assert made["value"] == pytest.approx(10 / 4)
    assert (made["high"] - made["value"]) == pytest.approx(T_1 * error, rel=1e-4)


def test_a_ratio_of_rates_by_hand():
    documents, ones = ["a", "b"], [1.0, 1.0]
    made = rate_ratio(documents, [2.0, 4.0], ones, [1.0, 1.0], ones)
    error = np.sqrt(0.5 * 2 * (np.log(2.0) / 2) ** 2)
    assert made["value"] == pytest.approx(3.0)
    assert made["high"] == pytest.approx(3.0 * np.exp(T_1 * error), rel=1e-3)
    assert rate_ratio(documents, [2.0, 4.0], ones, [2.0, 4.0], ones) == {"value": 1.0, "low": 1.0, "high": 1.0}
    less = of_rates(documents, ([2.0, 4.0], ones, [1.0, 1.0], ones), lambda one, other: one - other)
    assert less["value"] == pytest.approx(2.0)


def test_what_is_undefined():
    assert rate([], [], []) == UNDEFINED and rate(["a"], [1.0], [0.0]) == UNDEFINED
    assert rate(["a", "a"], [1.0, 2.0], [1.0, 1.0]) == {"value": 1.5, "low": None, "high": None}


def test_intervals_cover():
    """Of 600 simulated measurements with prompts of one document alike, about 95 %; items alone would not."""
    random, truth, covered, naive = np.random.default_rng(0), 1.5, 0, 0
    for _ in range(600):
        documents = np.repeat(np.arange(20), 3)
        effect = np.repeat(random.normal(0, 0.2, 20), 3) + random.normal(0, 0.05, 60)
        seconds, base = random.uniform(1, 3, (2, 60))
        tokens, plain = truth * seconds * np.exp(effect - 0.2**2 / 2 - 0.05**2 / 2), base
        for number, names in enumerate((documents, np.arange(60))):
            made = rate_ratio(map(str, names), tokens, seconds, plain, base)
            inside = made["low"] <= truth <= made["high"]
            covered += inside * (number == 0)
            naive += inside * (number == 1)
    assert 0.92 < covered / 600 < 0.98 and naive / 600 < 0.85


def test_only_what_is_finite_has_an_interval():
    assert of_rates(["a", "b"], ([1.0, 1.0], [1.0, 0.0]), lambda made: made)["low"] is None


def test_pairing_removes_what_documents_share():
    """Documents differ tenfold in speed, the arm is always 1.2 times as fast: the paired ratio is exact, a rate is not."""
    documents, seconds, tokens = "abcd", np.array([1.0, 10.0, 3.0, 30.0]), np.full(4, 60.0)
    ratio = rate_ratio(documents, tokens, seconds / 1.2, tokens, seconds)
    assert ratio["low"] == pytest.approx(1.2) == ratio["high"]
    assert rate(documents, tokens, seconds)["high"] > 2 * rate(documents, tokens, seconds)["value"] / 1.5
