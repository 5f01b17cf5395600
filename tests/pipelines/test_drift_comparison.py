"""The rates that drift states, over many streams of requests whose rounds are cut by budgets, clustered and of several slices."""

from dataclasses import replace
from functools import cache
from math import sqrt

import numpy as np
import pytest
from scipy.special import stdtrit

from pipelines.commands import drift
from pipelines.commands.drift import compared, exceeded
from predictors.monitoring import AlarmLevel

SETTINGS, STREAMS, RATE, WINDOW, GAMMA = ("T=0", "T=1"), 3000, 0.05, 64, 8
RECORDED, BUDGETS = 48, (24, 48, 256)  # new tokens of the reference's requests, and of served ones
SLICES = {"accepted": (0.55, 0.7, 0.8), "residual": (-0.02, 0.0, 0.03), "distance": (0.8, 0.9, 1.1)}


@pytest.fixture(autouse=True)
def _fast_quantiles(monkeypatch):
    """Streams ask for hundreds of thousands: scipy's, which the product's own equal (`test_students_quantiles`)."""
    monkeypatch.setattr(drift, "exceeded", lambda rate, freedom: -stdtrit(freedom, rate / 2))


@cache
def population(budget, slice_=None):
    """Fractions [statistic, request, 2] of many requests: a third of each slice, or of one."""
    random = np.random.default_rng(budget)
    slices = random.integers(3, size=20_000) if slice_ is None else np.full(20_000, slice_)
    chance, bias, level = (np.array(SLICES[name])[slices] for name in ("accepted", "residual", "distance"))
    accepted = np.minimum(random.geometric(1 - chance[:, None], size=(len(slices), budget)) - 1, GAMMA)
    emitted = 1 + np.cumsum(accepted + 1, axis=1) - (accepted + 1)  # before the round
    whole = budget - emitted - 1 >= GAMMA
    rounds = whole.sum(axis=1)
    sums = {
        "accepted": (accepted * whole).sum(axis=1),
        "residual": ((accepted > 0) * whole).sum(axis=1) - rounds * (chance - bias),
        "distance": rounds * level * random.gamma(4.0, 0.25, size=len(slices)),
    }
    return np.stack([np.stack([sums[name], rounds], axis=1) for name in SLICES])


@cache
def of_budgets(budgets, slice_=None):
    """As many requests of each of the ``budgets``."""
    return np.concatenate([population(budget, slice_) for budget in budgets], axis=1)


def served(random, budgets, slice_=None):
    """A window's fractions by statistic, its requests' budgets drawn from ``budgets``."""
    made = of_budgets(budgets, slice_)
    return fractions_of(made[:, random.integers(made.shape[1], size=WINDOW)])


def recorded(random, slice_=None):
    """A reference's fractions and documents: 36 documents, a third of them twice and alike."""
    documents = [*range(36), *range(12)]
    return fractions_of(population(RECORDED, slice_)[:, random.integers(20_000, size=36)[documents]]), documents


def fractions_of(some):
    return dict(zip(SLICES, some.tolist(), strict=True))


def mean_of_ratios(fractions, documents):
    return AlarmLevel.of([(above / below, 1) for above, below in fractions], documents)


def samples(random, budgets=(RECORDED,), slices=(None, None), level=AlarmLevel.of):
    """A reference and a window, of those ``slices``, by setting and statistic."""
    made = {}
    for setting in SETTINGS:
        (before, documents), now = recorded(random, slices[0]), served(random, budgets, slices[1])
        for name in SLICES:
            made[setting, name] = level(before[name], documents), level(now[name], range(WINDOW))
    return made


@cache
def stationary(**options):
    """Many streams of these options."""
    random = np.random.default_rng(0)
    return [samples(random, **options) for _ in range(STREAMS)]


def alarms(compare, streams=STREAMS, **options):
    """Share of stationary streams that ``compare`` flags."""
    return np.mean([any(one.drifted for one in compare(made)) for made in stationary(**options)[:streams]])


def shifted(made, name, shift):
    """The same stream with every served round's value of ``name`` that much higher."""
    before, now = made[name]
    return made | {name: (before, replace(now, mean=now.mean + shift))}


def bound(rate):
    return rate + 4 * sqrt(rate * (1 - rate) / STREAMS)


@pytest.mark.parametrize("budgets", [(24,), BUDGETS])
@pytest.mark.parametrize("rate", [0.01, RATE])
def test_a_stationary_stream_is_flagged_at_the_stated_rate(budgets, rate):
    """Whatever budgets it is served with."""
    found = alarms(lambda made: compared(made, rate), budgets=budgets)
    assert 0.3 * rate < found < bound(rate), found


def acceptance(rate):
    name = ("T=0", "accepted")
    return lambda made: compared({name: made[name]}, rate)


@pytest.mark.parametrize("budgets", [(24,), (256,)])
def test_a_mean_of_ratios_would_be_flagged_for_its_budget(budgets):
    same = {"budgets": budgets, "slices": (1, 1)}
    right, wrong = (alarms(acceptance(RATE), **same, level=level) for level in (AlarmLevel.of, mean_of_ratios))
    assert right < bound(RATE) < 0.1 < wrong, (right, wrong)


def test_a_few_requests_that_outweigh_the_others_are_no_drift():
    """Were their errors taken for those of as many requests as there are, they would be."""
    random, found = np.random.default_rng(0), []
    for _ in range(STREAMS):
        now = [population(budget)[:, random.integers(20_000, size=count)] for budget, count in ((24, 58), (512, 6))]
        before, documents = recorded(random)
        served_now = fractions_of(np.concatenate(now, axis=1))
        levels = AlarmLevel.of(before["accepted"], documents), AlarmLevel.of(served_now["accepted"], range(WINDOW))
        many = levels[0], replace(levels[1], freedom=WINDOW - 1)
        found.append([compared({("T=0", "accepted"): one}, 0.01)[0].drifted for one in (levels, many)])
    rate, wrong = np.mean(found, axis=0)
    assert rate < bound(0.01) < wrong, (rate, wrong)


def test_the_rate_would_be_missed_by_wrong_comparisons():
    """Without Bonferroni's share, or with a reference that is taken for exact."""

    def exactly(made):
        return {name: (replace(before, error=1e-9), now) for name, (before, now) in made.items()}

    alone = alarms(lambda made: [one for name in made for one in compared({name: made[name]}, RATE)], 500)
    certain = alarms(lambda made: compared(exactly(made), RATE), 500)
    assert min(alone, certain) > bound(RATE), (alone, certain)


@pytest.mark.parametrize("budgets", [(24,), BUDGETS])
def test_a_shift_of_the_detectable_size_is_missed_at_the_stated_rate(budgets):
    """By both directions together: an upward one is missed more often and a downward one less, as requests are skewed."""
    name = ("T=1", "accepted")

    def found(made):
        return next(one for one in compared(made, RATE) if (one.setting, one.statistic) == name)

    streams = stationary(budgets=budgets)
    typical = np.median([found(made).detectable for made in streams[:300]])
    moved = ([found(shifted(made, name, shift)).drifted for made in streams] for shift in (typical, -typical))
    missed = [1 - np.mean(drifted) for drifted in moved]
    assert np.mean(missed) == pytest.approx(drift.MISS_RATE, abs=0.03)
    assert missed == pytest.approx([drift.MISS_RATE] * 2, abs=0.07)


def test_a_switch_of_slice_is_flagged():
    random = np.random.default_rng(2)
    for slice_ in (0, 2):
        found = [any(one.drifted for one in compared(samples(random, slices=(None, slice_)), 0.01)) for _ in range(300)]
        assert np.mean(found) > 0.93


@pytest.mark.parametrize("freedom", [1.0, 2.5, 30.0, 1e6])
def test_students_quantiles(freedom):
    for rate in (1.0, 0.5, 0.2, 1e-2, 1e-4, 1e-7):
        assert exceeded(rate, freedom) == pytest.approx(-stdtrit(freedom, rate / 2), rel=1e-4, abs=1e-9)


def test_what_never_varies():
    level = AlarmLevel(mean=1.0, error=0.0, freedom=19.0, requests=20)
    pairs = ({("T=0", "accepted"): (level, replace(level, mean=value))} for value in (1.0, 1.5))
    (same,), (other,) = (compared(pair, 0.01) for pair in pairs)
    assert not same.drifted and other.drifted and other.t == np.inf
