"""Delayed trees as actions: equal trees are one, and what a step of each costs."""

import dataclasses

import numpy as np
import pytest

from predictors.actions import Action, ActionSet, Prices, Traffic
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile, LatencyTable, undisturbed
from predictors.sampling import SamplingSettings
from predictors.tree_choice import RATIO, SURPLUS, SelectionRule, Setting
from tests.bundles import most_traffic
from tests.predictors.affine_profile import COSTS, PROFILE


def test_equal_trees_are_one_action():
    assert Action(1, 2, 3) == Action(4, 5, 0) == Action(1, 0, 5) == Action(1, 5, 0)
    assert Action(2, 1, 3) != Action(2, 3, 1)
    assert Action(3, 0, 2).name == "delayed-3.0.2" and Action(3, 4, 0).name == "chain-4"
    assert (Action(3, 1, 2).depth, Action(3, 1, 2).most_nodes, Action(1, 1, 2).is_chain) == (3, 7, True)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 0), (2, -1, 2), (2, 0, 0)])
def test_numbers_that_are_no_tree_are_refused(numbers):
    with pytest.raises(ValueError, match="a delayed tree needs"):
        Action(*numbers)


def test_action_sets_hold_nothing_twice_and_nothing_too_large():
    found = ActionSet(chains=(2, 4), k=(1, 2), l1=(0, 2), l2=(0, 2), max_nodes=5).actions
    assert found == (Action(1, 2, 0), Action(1, 4, 0), Action(2, 0, 2)), "(2, 2, 2) has six nodes"
    whole = ActionSet(chains=(), k=(1, 2, 3, 4), l1=tuple(range(9)), l2=tuple(range(9)), max_nodes=40)
    chains = {Action(1, length, 0) for length in range(1, 17)}
    trees = {Action(k, l1, l2) for k in (2, 3, 4) for l1 in range(9) for l2 in range(1, 9)}
    assert set(whole.actions) == chains | trees and len(whole.actions) == 16 + 3 * 9 * 8
    with pytest.raises(ValueError, match="at least one tree"):
        ActionSet(chains=(9,), k=(), max_nodes=8)


def step_seconds(profile, rule, action, traffic, context):
    return RoundPrices(profile, sampled=True, quiet=False).tree(action, traffic, rule, context)


def drawing(l1, nodes):
    return COSTS["chain_drawing"](l1, 1) + COSTS["tree_drawing"](nodes, 1)


def test_the_time_of_a_step_by_hand():
    """(3, 2, 3) with 9 of 11 nodes distinct and 4 of 6 fed: three passes of one row and two of two on average."""
    tree, made, at = Action(3, 2, 3), Traffic(nodes=9, fed=4), 20
    passes = sum(COSTS["draft"](1, at + place) for place in range(3)) + sum(
        COSTS["draft"](2, at + 3 + j) for j in range(2)
    )
    expected = passes + COSTS["target"](10, at) + drawing(2, 7) + COSTS["tree_verification"](9, 1)
    assert step_seconds(PROFILE, "traversal", tree, made, at) == pytest.approx(expected)
    chain = RoundPrices(PROFILE, sampled=True, quiet=False).chain(4, at)
    assert step_seconds(PROFILE, "block", Action(1, 4, 0), Traffic(4, 0), at) == pytest.approx(chain)


def test_every_rule_has_its_own_price():
    dear = LatencyTable({"drafted": (0, 16)}, np.array([50.0, 50.0]), np.array([50.0, 50.0]), np.array([50.0, 50.0]), 1)
    profile = LatencyProfile({**PROFILE.tables, "verification_khisti": dear}, "toy", {}, {})
    tree, made = Action(2, 1, 1), Traffic(3, 0)
    khisti, traversal = (step_seconds(profile, rule, tree, made, 8) for rule in ("khisti", "traversal"))
    assert khisti - traversal == pytest.approx(50 - COSTS["tree_verification"](3, 1))
    with pytest.raises(ValueError, match="no table 'verification_spectr'"):
        step_seconds(profile, "spectr", tree, made, 8)


def test_prices_between_and_beyond_contexts():
    table = Prices((10, 20, 40), ((1.0, 10.0), (2.0, 20.0), (4.0, 40.0)), 0.0, "hash")
    assert table.at(15).tolist() == [1.5, 15.0] and table.at(30).tolist() == [3.0, 30.0]
    assert table.at(5).tolist() == [1.0, 10.0] and table.at(99).tolist() == [4.0, 40.0]
    assert Prices((10,), ((1.0, 2.0),), 0.0, "hash").at(50).tolist() == [1.0, 2.0]


def test_prices_are_compared_with_each_other():
    """A machine twice as slow at everything makes no other choice; one where only drafting is dearer does."""
    table = Prices((10, 20), ((1.0, 10.0), (2.0, 20.0)), 0.0, "hash")
    slower = dataclasses.replace(table, action_seconds=((2.0, 20.0), (4.0, 40.0)))
    other = dataclasses.replace(table, action_seconds=((1.0, 10.0), (2.0, 30.0)))
    assert table.largest_factor(slower) == pytest.approx(1.0)
    assert table.largest_factor(other) == other.largest_factor(table) == pytest.approx(1.5)


def test_prices_of_a_profile():
    actions = (Action(1, 2, 0), Action(2, 0, 2))
    traffic = [most_traffic(action) for action in actions]
    made = RoundPrices(PROFILE, sampled=True).actions("traversal", actions, traffic, 16)
    assert made.contexts == (1, 512) and made.profile_hash == PROFILE.profile_hash
    expected = [step_seconds(PROFILE, "traversal", action, most_traffic(action), 512) / 2 for action in actions]
    assert made.at(512) == pytest.approx(expected), "of the fast quartiles, here half the medians"
    assert made.decision_seconds == pytest.approx(COSTS["selection"](16) / 2), "what choosing adds, whatever is chosen"


def test_a_cell_is_no_dearer_than_a_larger_one():
    seconds = np.array([[4.0, 3.0], [2.0, 5.0], [6.0, 7.0]])
    table = LatencyTable({"rows": (1, 2, 4), "context": (8, 16)}, seconds + 1, seconds, seconds + 2, 3)
    quiet = undisturbed(LatencyProfile({"draft": table}, "toy", {}, {})).table("draft")
    assert quiet.median.tolist() == [[2.0, 3.0], [2.0, 5.0], [6.0, 7.0]]


def test_a_choice_must_promise_more_than_the_margin():
    """Three actions of one second each, where time brings a token a second elsewhere; then one that takes two seconds."""
    rule, seconds = SelectionRule(SURPLUS, 1.0, 0.1, 9.0, ()), np.ones(3)
    assert rule.chosen(np.array([1.0, 1.05, 1.2]), seconds, 0, 1.0) == 2
    assert rule.chosen(np.array([1.15, 1.05, 1.2]), seconds, 0, 1.0) == 0
    longer = np.array([1.0, 1.0, 2.0])
    assert rule.chosen(np.array([1.0, 1.05, 2.05]), longer, 0, 1.0) == 0, (
        "1.05 less a second's token, not more than 1.1"
    )
    assert rule.chosen(np.array([1.0, 1.05, 2.15]), longer, 0, 1.0) == 2
    assert SelectionRule(SURPLUS, 1.2, 0.1, 9.0, ()).chosen(np.array([1.0, 1.05, 2.25]), longer, 0, 1.0) == 0


def test_choices_by_surplus_beat_choices_by_ratio():
    """Two roots, a short and a long step at each: the ratio of sums is what counts, and each root's own ratio misses it."""
    tokens, seconds = np.array([[1.0, 1.9], [3.0, 8.0]]), np.array([[1.0, 2.0], [1.0, 4.0]])

    def throughput(places):
        return tokens[[0, 1], places].sum() / seconds[[0, 1], places].sum()

    own_ratio = (tokens / seconds).argmax(axis=1)
    best = max(throughput([a, b]) for a in (0, 1) for b in (0, 1))
    rule = SelectionRule(SURPLUS, 1.0, 0.0, 9.0, ())
    found = rule.chosen(tokens, seconds, np.array([0, 0]), np.array([2.0, 2.0]))
    assert throughput(found) == pytest.approx(best) and best >= throughput(own_ratio)
    by_ratio = SelectionRule(RATIO, 1.0, 0.0, 9.0, ()).chosen(tokens, seconds, np.array([0, 0]), np.array([2.0, 2.0]))
    assert by_ratio.tolist() == own_ratio.tolist()
    scaled = SelectionRule(RATIO, 1.0, 0.0, 9.0, ()).chosen(7 * tokens, seconds, np.array([0, 0]), np.array([2.0, 2.0]))
    assert scaled.tolist() == by_ratio.tolist(), "a factor does not matter to the ratio"


def test_the_static_action_is_that_of_the_nearest_setting():
    table = Prices((10,), ((1.0, 2.0),), 0.0, "hash")
    cool, warm = Setting(0.5, 0, 1.0, 10, (1.5, 3.5)), Setting(1.0, 0, 1.0, 10, (1.5, 2.5))
    rule = SelectionRule(SURPLUS, 1.0, 0.0, 9.0, (cool, warm))
    found = [rule.static(SamplingSettings(heat), table) for heat in (0.0, 0.5, 0.7, 0.9, 2.0)]
    assert [static.place for static in found] == [1, 1, 1, 0, 0]
    assert [static.rate for static in found] == pytest.approx([1.75, 1.75, 1.75, 1.5, 1.5])
