"""Which source promises most: beside brute force, at the prices of replayed rounds, of arrays as of numbers."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from predictors.config import parse_config
from predictors.controllers.source import ROOT, TOKEN, Seen, SourceRule
from predictors.latency.prices import RoundPrices
from predictors.rounds import ReplayedRound
from tests.bundles import WEIGHED
from tests.predictors.affine_profile import PROFILE

RULE = parse_config(SourceRule, WEIGHED, "rule")
CHAIN = (1.0, 1.3, 1.5, 1.8)


def constant(chance, **changes):
    """A rule to which every token of a lookup is accepted alike."""
    hazard = (float(np.log(chance / (1 - chance))), *(0.0,) * (len(TOKEN) - 1))
    return replace(RULE, hazard=hazard, **changes)


def expected(chance, tokens, tail, gained):
    """Emitted tokens, by enumerating how many of the lookup are accepted."""
    stops = sum((1 + accepted) * chance**accepted * (1 - chance) for accepted in range(tokens))
    return stops + chance**tokens * (1 + tokens + gained[tail])


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0, 6.0])
def test_the_best_source_is_that_of_brute_force(chance, rate):
    rule, seen = constant(chance, gained=(0.0, 0.9), behind=0.2), Seen(3, 2, 2, 1, 0.0, 0.7)

    def worth(tokens, tail):
        emitted = expected(chance, tokens, tail, rule.gained)
        return emitted - rate * (rule.costs[tail][tokens] + (0.2 * emitted if tail == 0 else 0))

    options = list(product((1, 2), (0, 1)))
    best = max(options, key=lambda option: worth(*option))
    made = rule.chosen(seen, rate, CHAIN)
    assert (made.tokens, made.tail) == best
    chain = 2.0 - rate * np.interp(1.5, range(4), CHAIN)
    assert made.takes == (worth(*best) > chain)
    assert rule.chosen(seen, rate / 2, CHAIN)[:3] == replace(rule, share=0.5).chosen(seen, rate, CHAIN)[:3]


def test_every_answer_is_met():
    """Twin of the test above: were all choices alike, it would prove little."""
    made = {
        tuple(
            map(
                int, constant(chance, gained=(0.0, 0.9), behind=0.2).chosen(Seen(3, 2, 2, 1, 0.0, 0.7), rate, CHAIN)[:3]
            )
        )
        for chance, rate in product((0.05, 0.3, 0.6, 0.9), (0.5, 1.0, 2.0, 6.0))
    }
    assert {takes for takes, *_ in made} == {0, 1} and len({(tokens, tail) for _, tokens, tail in made}) > 2


def test_arrays_decide_as_numbers_do():
    random = np.random.default_rng(0)
    match, seen = random.integers(0, 9, 200), random.integers(1, 6, 200)
    found = np.where(match > 0, random.integers(1, 5, 200), 0)
    known = Seen(
        match, found, seen, np.minimum(seen, random.integers(0, 5, 200)), random.integers(0, 2, 200), random.random(200)
    )
    many = RULE.chosen(known, 1.1, CHAIN)
    for place in np.flatnonzero(found):
        one = RULE.chosen(Seen(*(values[place].item() for values in known)), 1.1, CHAIN)
        assert [float(value) for value in one] == pytest.approx([float(values[place]) for values in many])
    taken = {
        *zip(
            many.takes[found > 0].tolist(), many.tokens[found > 0].tolist(), many.tail[found > 0].tolist(), strict=True
        )
    }
    assert len(taken) > 4 and {takes for takes, *_ in taken} == {False, True}
    assert not many.takes[found == 0].any(), "nothing was found"


@pytest.mark.parametrize("sampled", [False, True])
def test_prices_are_those_of_replayed_rounds(sampled):
    """In one table: target, what is drawn, and what the draft model reads of the lookup before it draws."""
    prices, context = RoundPrices(PROFILE, sampled), 40
    costs = prices.lookup_costs(4, (0, 2), context)
    for (place, tail), tokens in product(enumerate((0, 2)), range(5)):
        behind = tokens if tail else 0
        made = ReplayedRound(context=context, drafted=tokens + tail, passes=tail, looked_up=tokens, behind=behind)
        assert costs[place][tokens] * prices.chain(0, context) == pytest.approx(prices.rounds([made]), rel=1e-6)
    rule = RULE.at_prices(prices, context)
    assert len(rule.costs[0]) == len(RULE.costs[0]) and rule.costs[1][2] > rule.costs[0][2] > rule.costs[0][1] > 1
    assert rule.behind * prices.chain(0, context) == pytest.approx(prices.catching_up(5, context) / 5, rel=1e-6)


def test_what_a_root_knows_has_as_many_names():
    assert len(RULE.tokens) == len(ROOT) == len(RULE.mean) and len(RULE.hazard) == len(TOKEN)
