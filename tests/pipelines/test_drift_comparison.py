"""The rates that drift states, over many streams of requests whose statistics are skewed, clustered and of several slices."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from pipelines import drift_comparison
from pipelines.drift_comparison import compared
from predictors.monitoring import Level

SETTINGS, STREAMS, RATE, WINDOW = ("T=0", "T=1"), 2000, 0.05, 64
SLICES = {"accepted": (1.0, 1.6, 2.6), "residual": (-0.02, 0.0, 0.03), "distance": (0.8, 0.9, 1.1)}


def requests(random, statistic, count, slice_=None):
    """Statistics of ``count`` requests: a third of each slice, right-skewed like acceptance and distances, or of one slice."""
    shares = random.integers(3, size=count) if slice_ is None else np.full(count, slice_)
    level = np.array(SLICES[statistic])[shares]
    if statistic == "residual":
        return level + (random.binomial(12, 0.7, size=count) - 8.4) / 12
    return level * random.gamma(4.0, 0.25, size=count)


def samples(random, slice_=None, shift=None):
    """A reference of 72 requests, from 36 documents once and 18 twice, and a window, by setting and statistic."""
    documents = [str(place) for place in range(54)] + [str(place) for place in range(18)]
    made = {}
    for setting in SETTINGS:
        for name in SLICES:
            level = Level.of(requests(random, name, 72).tolist(), documents)
            served = requests(random, name, WINDOW, slice_) + (0.0 if shift is None else shift[setting, name])
            made[setting, name] = level, served.tolist()
    return made


def alarms(compare, streams=STREAMS):
    """Share of stationary streams that ``compare`` flags."""
    random = np.random.default_rng(0)
    return np.mean([any(one.drifted for one in compare(samples(random))) for _ in range(streams)])


def bound(rate):
    return rate + 4 * sqrt(rate * (1 - rate) / STREAMS)


def test_a_stationary_stream_is_flagged_at_the_stated_rate():
    rate = alarms(lambda made: compared(made, RATE))
    assert 0.4 * RATE < rate < bound(RATE), rate


def test_the_rate_would_be_missed_by_wrong_comparisons():
    """Without Bonferroni's share, or with a reference that is taken for exact."""
    alone = alarms(lambda made: [one for name in made for one in compared({name: made[name]}, RATE)], 500)
    exact = {"error": 1e-9}
    certain = alarms(
        lambda made: compared(
            {name: (replace(level, **exact), served) for name, (level, served) in made.items()}, RATE
        ),
        500,
    )
    assert min(alone, certain) > bound(RATE), (alone, certain)


def test_a_shift_of_the_detectable_size_is_missed_at_the_stated_rate():
    random = np.random.default_rng(1)
    name = ("T=1", "accepted")
    typical = np.median(
        [
            next(one.detectable for one in compared(samples(random), RATE) if (one.setting, one.statistic) == name)
            for _ in range(60)
        ]
    )
    shift = {(setting, statistic): 0.0 for setting in SETTINGS for statistic in SLICES} | {name: typical}
    found = [
        next(
            one.drifted for one in compared(samples(random, shift=shift), RATE) if (one.setting, one.statistic) == name
        )
        for _ in range(STREAMS)
    ]
    assert 1 - np.mean(found) == pytest.approx(drift_comparison.MISS_RATE, abs=0.04)


def test_a_switch_of_slice_is_flagged():
    random = np.random.default_rng(2)
    for slice_ in (0, 2):
        found = [any(one.drifted for one in compared(samples(random, slice_), 0.01)) for _ in range(300)]
        assert np.mean(found) > 0.93


def test_what_never_varies():
    level = Level(mean=1.0, deviation=0.0, error=0.0, requests=20, documents=20)
    (same,), (other,) = (compared({("T=0", "accepted"): (level, [value] * 20)}, 0.01) for value in (1.0, 1.5))
    assert not same.drifted and other.drifted and other.t == np.inf
