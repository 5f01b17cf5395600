import numpy as np
import pytest

from pipelines.reporting.statistics import PairedBootstrap, less_one, weighted_median


def test_rate_of_constant_rates_has_no_width():
    bootstrap = PairedBootstrap(["a", "a", "b", "c"], replicates=200, seed=0)
    assert bootstrap.rate([1, 2, 3, 4], [2, 4, 6, 8]) == {"value": 0.5, "low": 0.5, "high": 0.5}


def test_rate_without_cost_is_undefined():
    assert PairedBootstrap(["a"], 10, 0).rate([1], [0]) == {"value": None, "low": None, "high": None}


def test_pairing_removes_what_documents_share():
    """Documents differ tenfold in speed, the arm is always 1.2 times as fast: the paired ratio is exact, a rate is not."""
    seconds = np.array([1.0, 10.0, 3.0, 30.0])
    tokens = np.full(4, 60)
    bootstrap = PairedBootstrap(["a", "b", "c", "d"], replicates=500, seed=0)
    ratio = bootstrap.rate_ratio(tokens, seconds / 1.2, tokens, seconds)
    assert ratio["low"] == pytest.approx(1.2) == ratio["high"]
    rate = bootstrap.rate(tokens, seconds)
    assert rate["high"] > 2 * rate["low"]


def test_interval_of_a_mean_matches_the_normal_one():
    values = np.random.default_rng(0).normal(5.0, 1.0, size=400)
    documents = [str(index) for index in range(len(values))]
    found = PairedBootstrap(documents, replicates=4000, seed=1).rate(values, np.ones(len(values)))
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found["value"] == pytest.approx(values.mean())
    assert found["low"] == pytest.approx(values.mean() - half, abs=0.01)
    assert found["high"] == pytest.approx(values.mean() + half, abs=0.01)


def test_documents_are_drawn_not_prompts():
    """Copies of a prompt in one document add no certainty (drawing prompts would halve the width)."""
    values = np.random.default_rng(0).normal(5.0, 1.0, size=40)
    documents = [str(index) for index in range(40)]
    once = PairedBootstrap(documents, 2000, 0).rate(values, np.ones(40))
    repeated = PairedBootstrap(documents * 4, 2000, 0).rate(np.tile(values, 4), np.ones(160))
    wrong = PairedBootstrap([str(i) for i in range(160)], 2000, 0).rate(np.tile(values, 4), np.ones(160))
    width = {"once": once, "repeated": repeated, "wrong": wrong}
    width = {name: interval["high"] - interval["low"] for name, interval in width.items()}
    assert width["repeated"] == pytest.approx(width["once"])
    assert width["wrong"] < 0.7 * width["once"]


def test_median():
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.ones(3)) == 2.0
    assert weighted_median(np.array([4.0, 1.0, 2.0, 3.0]), np.ones(4)) == 2.5
    assert weighted_median(np.array([1.0, 9.0]), np.array([0.0, 2.0])) == 9.0
    found = PairedBootstrap(["a", "b", "c"], 200, 0).median([1.0, 2.0, 9.0])
    assert (found["value"], found["low"], found["high"]) == (2.0, 1.0, 9.0)


def test_gain():
    assert less_one({"value": 1.5, "low": None, "high": 2.0}) == {"value": 0.5, "low": None, "high": 1.0}


def test_a_difference_of_rates_is_paired_and_may_start_from_nothing():
    """Documents differ widely in their shares, the arm's is always a tenth higher: the paired difference is exact."""
    share = np.array([0.0, 0.0, 0.4, 0.8])
    bootstrap = PairedBootstrap(["a", "b", "c", "d"], replicates=500, seed=0)
    levels = np.full(4, 100)
    difference = bootstrap.rate_difference((share + 0.1) * levels, levels, share * levels, levels)
    assert (difference["value"], difference["low"], difference["high"]) == pytest.approx((0.1, 0.1, 0.1))
    unpaired = bootstrap.rate((share + 0.1) * levels, levels)
    assert unpaired["high"] - unpaired["low"] > 0.3
    nothing = bootstrap.rate_difference(share, levels, share, 0 * levels)
    assert nothing == {"value": None, "low": None, "high": None}
