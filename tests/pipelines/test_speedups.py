"""Speed-ups by replay and clock together: the formulas by hand, and why neither alone is enough."""

import math

import numpy as np
import pytest

from pipelines.evidence.estimate import Estimate
from pipelines.measuring.names import CHAIN, PLAIN
from pipelines.measuring.tuning.candidates import Candidate
from pipelines.measuring.tuning.speedups import ReplayError, Speedup, clocked, fastest, speedups


def candidate(name, predicted=100.0, family="rule", served=None):
    return Candidate(name, family, served or {"decoder": {"method": name}}, predicted)


def by_arm(rows):
    return [(arm, [row for row in rows if row["arm"] == arm]) for arm in {row["arm"] for row in rows}]


def decode(arm, prompt, seconds, tokens=10):
    where = {"prompt": prompt, "document": f"d{prompt}", "slice": "code", "block": prompt, "temperature": 0.0}
    return {**where, "arm": arm, "tokens": tokens, "seconds": seconds}


def test_replays_error_and_the_combination_are_what_the_formulas_say():
    clock = [Estimate(value, 0.05, 3.0, 4, 4) for value in (0.05, 0.3, 0.1)]
    replay = ReplayError.of(np.array([0.0, 0.1, 0.2]), clock, floor=0.02)
    # w = 400 each, wrong by 0.05, 0.2, -0.1: Q = 18, and (18 - 2) / (1200 - 400) = 0.02
    assert replay.noise == pytest.approx(0.01) and replay.bias == pytest.approx(0.05)
    assert replay.variance == pytest.approx(0.02) and replay.bias_variance == pytest.approx(0.0225 / 3)
    made = replay.combined(0.1, clock[1])
    assert made.value == pytest.approx(8 / 9 * 0.3 + 1 / 9 * 0.15)
    assert made.error == pytest.approx(math.sqrt(8 / 9 * 0.0025 + 0.0075 / 81))
    untimed = replay.combined(0.4, None)
    assert untimed.value == pytest.approx(0.45) and untimed.error == pytest.approx(math.sqrt(0.02 + 0.0075))


def test_replay_is_never_taken_to_be_surer_than_the_floor():
    """Candidates that agree better than their noise allows do so by luck."""
    clock = [Estimate(value, 0.05, 3.0, 4, 4) for value in (0.1, 0.2)]
    replay = ReplayError.of(np.array([0.1, 0.2]), clock, floor=0.03)
    assert replay.variance == pytest.approx(0.0009) and replay.bias == pytest.approx(0.0)
    assert ReplayError.of(np.array([0.1]), clock[:1], floor=0.03).variance == pytest.approx(0.0009)


def test_noise_is_pooled_over_candidates_by_their_documents():
    few, many = Estimate(0.0, 0.1, 1.0, 2, 2), Estimate(0.0, 0.02, 9.0, 10, 10)
    noise = ReplayError.of(np.zeros(2), [few, many], 0.02).noise
    assert noise == pytest.approx((1 * 2 * 0.01 + 9 * 10 * 0.0004) / 10)


def test_gains_are_over_plain_decoding_in_the_same_blocks():
    """An arm that was timed on slow prompts only: by rates over all prompts it would hardly be faster than plain decoding."""
    rows = [decode(PLAIN, str(n), seconds) for n, seconds in enumerate((1.0, 1.0, 8.0, 8.0))]
    rows += [decode("fast", str(n), 4.0) for n in (2, 3)] + [decode("lonely", "9", 1.0), decode("once", "0", 0.5)]
    assert clocked(rows)["fast"].gain == pytest.approx(1.0)
    rates = {
        arm: sum(row["tokens"] for row in some) / sum(row["seconds"] for row in some) for arm, some in by_arm(rows)
    }
    assert rates["fast"] / rates[PLAIN] - 1 == pytest.approx(0.125), "the wrong twin"
    assert set(clocked(rows)) == {"fast"}, "others share no two documents with plain decoding"
    assert clocked([row for row in rows if row["arm"] != PLAIN]) == {}


def test_what_was_timed_counts_and_what_was_not_is_moved_by_replays_bias():
    found = [candidate("a", 150.0), candidate("b", 120.0), candidate("c", 180.0), candidate(PLAIN, 100.0)]
    rows = [decode(PLAIN, str(n), 1.0) for n in range(4)]
    rows += [decode(name, str(n), 1 / ratio) for name, ratio in (("a", 1.65), ("b", 1.32)) for n in range(4)]
    made, replay = speedups([*found], [*rows, decode("stranger", "0", 0.1)], floor=0.02)
    assert math.exp(replay.bias) == pytest.approx(1.1)
    assert math.exp(made["a"].value) == pytest.approx(1.65) and made["a"].documents == 4
    assert math.exp(made["c"].value) == pytest.approx(1.98) and made["c"].measured is None
    assert made[PLAIN].value == 0.0


def test_without_a_clock_replay_decides():
    found = [candidate("a", 150.0), candidate(PLAIN, 100.0)]
    made, _ = speedups(found, [], floor=0.02)
    assert made["a"] == Speedup(math.log(1.5), None, 0, math.log(1.5), 0.02)


def test_ties_go_to_the_plainest():
    found = [
        candidate("head", served={"bundle": "head"}),
        candidate("rule"),
        candidate("chain-2", family=CHAIN),
        candidate(PLAIN),
    ]
    values = {"head": math.log(2.0), "rule": math.log(1.99), "chain-2": math.log(1.97), PLAIN: 0.0}
    by_name = {name: Speedup(0.0, None, 0, value, 0.0) for name, value in values.items()}
    picked = [fastest(found, by_name, tie).name for tie in (0.0, 0.003, 0.01, 0.02, 2.0)]
    assert picked == ["head", "head", "rule", "chain-2", PLAIN]


def choose(rng, candidates=8, documents=6):
    """What the three ways of choosing lose to the truly fastest, and whether 95 % intervals of the combination hold the truth."""
    true = rng.normal(0.5, 0.1, candidates)
    predicted = true - 0.06 + rng.normal(0, 0.05, candidates)
    by_document = true + rng.normal(0, 0.15, (documents, candidates))
    clock = [
        Estimate(
            float(column.mean()), float(column.std(ddof=1) / math.sqrt(documents)), documents - 1, documents, documents
        )
        for column in by_document.T
    ]
    replay = ReplayError.of(predicted, clock, floor=0.02)
    both = [replay.combined(p, one) for p, one in zip(predicted, clock, strict=True)]
    ways = [[one.value for one in both], [one.value for one in clock], predicted]
    held = [abs(one.value - truth) < 1.96 * one.error for one, truth in zip(both, true, strict=True)]
    return [true.max() - true[int(np.argmax(way))] for way in ways], np.mean(held)


def test_both_together_choose_better_than_the_clock_or_replay_alone():
    rng = np.random.default_rng(0)
    lost, held = zip(*(choose(rng) for _ in range(600)), strict=True)
    both, clock, replay = np.mean(lost, axis=0)
    assert both < 0.8 * clock and both < 0.9 * replay
    assert 0.9 < np.mean(held) < 0.98
