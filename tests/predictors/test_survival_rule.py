"""The survival rule: best among static lengths where nothing is known, looks over steps; its inputs as they are defined."""

import math

import numpy as np
import pytest
import torch

from predictors.signals import TokenNumbers
from predictors.survival import FIRST_LUCK, SCALARS, Answering, Course, SurvivalNetwork, SurvivalRule, luck_after

AFFINE = [1 + 0.2 * drafted for drafted in range(13)]
STEPS = [1.0] + [1.6 if drafted <= 4 else 2.2 if drafted <= 8 else 2.8 for drafted in range(1, 13)]


def drafted_by(rule, acceptance, costs):
    """Where it stops if every token is accepted with this probability."""
    length = 1
    while length < 12 and acceptance ** (length + 1) > rule.needed(costs)[length]:
        length += 1
    return length


def rate_of(length, acceptance, costs):
    return sum(acceptance**place for place in range(length + 1)) / costs[length]


@pytest.mark.parametrize("costs", [AFFINE, STEPS], ids=["affine", "steps"])
@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.75, 0.9, 0.97])
def test_at_the_best_rate_it_drafts_the_best_length(acceptance, costs):
    best = max(range(1, 13), key=lambda length: rate_of(length, acceptance, costs))
    rule = SurvivalRule(rate_of(best, acceptance, costs) * (1 - 1e-9), follows=acceptance, horizon=12)
    assert rate_of(drafted_by(rule, acceptance, costs), acceptance, costs) == pytest.approx(
        rate_of(best, acceptance, costs)
    )


def test_without_looking_ahead_it_stops_at_a_step():
    """Twin: one token ahead does not pay for the next step of a pass, four do."""
    acceptance = 0.9
    best = max(range(1, 13), key=lambda length: rate_of(length, acceptance, STEPS))
    far, near = (
        SurvivalRule(rate_of(best, acceptance, STEPS), follows=acceptance, horizon=horizon) for horizon in (12, 1)
    )
    assert drafted_by(far, acceptance, STEPS) == best == 8 and drafted_by(near, acceptance, STEPS) == 4


def test_what_is_needed_is_the_rule():
    """Of every number of tokens ahead by itself."""
    random = np.random.default_rng(0)
    rule = SurvivalRule(1.3, follows=0.8, horizon=5)
    needed = rule.needed(STEPS)
    assert len(needed) == len(STEPS) and needed[12] == np.inf
    for drafted in (1, 7, 11):
        for survival, following in random.random((50, 2)):
            goes_on = any(
                survival * following * sum(0.8**place for place in range(ahead))
                > 1.3 * (STEPS[drafted + ahead] - STEPS[drafted])
                for ahead in range(1, min(5, 12 - drafted) + 1)
            )
            assert goes_on == (survival * following > needed[drafted])


@pytest.mark.parametrize("match", [0, 3])
def test_one_draft_is_answered_as_arrays_are(match):
    """Logits of both answers along a draft, with a lookup that it leaves, and the distance; nothing of no number."""
    torch.manual_seed(0)
    random, network = np.random.default_rng(1), SurvivalNetwork(6)
    network.mean.copy_(torch.randn(len(SCALARS)))
    network.scale.copy_(torch.rand(len(SCALARS)) + 0.5)
    answering, one = Answering(network), Course(match, 1.0, 0.6, 1.0)
    arrays = Course(np.array([match, match]), np.ones(2), np.full(2, 0.6), 1.0)
    for position in range(6):
        token, proposed = TokenNumbers(*-random.random(2)), position < 3
        features, columns = one.add(token, proposed), arrays.add(token, np.full(2, proposed))
        many = np.stack(np.broadcast_arrays(*columns), axis=-1)
        assert many[0].tolist() == many[1].tolist() == features
        said, answers = answering.of_one(features), answering(many)
        for name in ("now", "following", "distance", "sketch"):
            assert getattr(said, name) == pytest.approx(getattr(answers, name)[1].tolist(), rel=1e-12)
        assert network(torch.tensor([features], dtype=torch.float32))[0].tolist() == pytest.approx(
            [said.now, said.following], abs=1e-4
        )
        standard = (many[0] - network.mean.double().numpy()) / network.scale.double().numpy()
        assert said.distance == pytest.approx(float((standard[:5] ** 2).mean()))
        assert list(said.sketch) == pytest.approx(standard[:4].tolist())
    nobody = answering.of_one(one.add(TokenNumbers(math.nan, -1.0), False))
    assert all(map(math.isnan, nobody[:3])) and np.isnan(answering(np.full(len(SCALARS), np.nan))[:3]).all()


def test_features_of_a_course():
    course = Course(np.array(2), 1.0, 0.6, 0.0)
    first = dict(zip(SCALARS, course.add(TokenNumbers(-0.1, -0.2), proposed=True), strict=True))
    second = dict(zip(SCALARS, course.add(TokenNumbers(-0.3, -0.5), proposed=False), strict=True))
    third = dict(zip(SCALARS, course.add(TokenNumbers(-0.7, -0.7), proposed=True), strict=True))
    assert first["agrees"] == 1 and first["agreed_length"] == pytest.approx(np.log(4)) and first["parted"] == 0
    assert second["agrees"] == second["agreed_length"] == 0 and second["parted_length"] == pytest.approx(np.log(3))
    assert third["agrees"] == 0 and third["parted"] == 1, "it parted before"
    assert second["sum_log_top"] == pytest.approx(-0.4) and second["sum_log_own"] == pytest.approx(-0.7)
    assert third["previous_log_top"] == -0.3 and third["position"] == 2
    assert (third["found"], third["rejected"], third["luck"], third["greedy"]) == (1, 1, 0.6, 0)
    assert third["match"] == pytest.approx(np.log(3))


def test_luck_counts_tested_tokens_one_by_one():
    for accepted in range(5):
        for rejected in (0.0, 1.0):
            expected = FIRST_LUCK
            for outcome in [1.0] * accepted + [0.0] * int(rejected):
                expected = 0.8 * expected + 0.2 * outcome
            assert luck_after(FIRST_LUCK, accepted, rejected) == pytest.approx(expected)
