"""Acceptance statistics and throughput formulas: by hand, against enumeration and against simulation of the process itself."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import generation_latency, iid_accepted_law, truncated_law
from predictors.rounds import ReplayedRound, RoundRecord
from predictors.sampling import SamplingSettings
from tests.predictors.affine_profile import AS_RUN, COSTS, PROFILE, toy_profile

untimed = settings(deadline=None, derandomize=True)


def test_accepted_laws_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="gamma must be >= 0, got -1"):
        iid_accepted_law(0.5, -1)
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


def chain_round(drafted, context, sampled):
    """Seconds of a chain's round, straight from the costs."""
    passes = sum(COSTS["draft"](1, context + place) for place in range(drafted))
    outside = COSTS["chain_drawing"](drafted, sampled) + COSTS["chain_verification"](drafted, sampled)
    return passes + outside + COSTS["target"](1 + drafted, context)


def test_a_drafted_token_in_target_passes():
    """Steps at contexts 10 and 11 and two draws, per token, over the pass of three with its verdict."""
    drafting = (1.25 + 10 / 64) + (1.25 + 11 / 64) + 0.125 * 2 * 2
    verifying = 9 + 1.5 + 10 / 16 + 0.5 + 0.5 + 1
    assert RoundPrices(PROFILE, sampled=True).draft_cost(2, context=10) == pytest.approx(drafting / 2 / verifying)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("drafted", [0, 1, 4])
def test_round_of_a_chain(drafted, sampled):
    """By the medians, or by the fast quartiles: here half of them."""
    expected = chain_round(drafted, 40, sampled)
    assert RoundPrices(PROFILE, sampled, quiet=False).chain(drafted, 40) == pytest.approx(expected)
    assert RoundPrices(PROFILE, sampled).chain(drafted, 40) == pytest.approx(expected / 2)


@pytest.mark.parametrize("sampled", [False, True])
def test_plain_decoding_costs_what_it_ran(sampled):
    """A token behind 1 took 9, not the sum of its cells; rounds with drafts, and the unit of their costs, are sums."""
    summed, ran = chain_round(0, 40, sampled), 9.0
    profile = toy_profile(plain=lambda context: ran * context)
    prices = RoundPrices(profile, sampled, quiet=False)
    assert prices.plain(40) == pytest.approx(summed * ran / chain_round(0, 1, 0))
    assert RoundPrices(profile, sampled).plain(40) == pytest.approx(prices.plain(40) / 2)
    assert RoundPrices(PROFILE, sampled, quiet=False).plain(40) == pytest.approx(summed)
    assert prices.chain_costs(1, 40) == pytest.approx((1, chain_round(1, 40, sampled) / summed))
    generation = generation_latency(profile, [1.0], 0, 5, 2, sampled)
    assert generation.seconds == pytest.approx(COSTS["target_prefill"](5) + prices.plain(5))
    assert (generation.low, generation.high) == pytest.approx((generation.seconds / 2, generation.seconds * 3))


def test_round_of_a_tree_by_hand():
    """(2, 1, 2) at context 64: passes of 1, 1 and 2 rows, then five nodes and the newest token."""
    passes = (1.25 + 64 / 64) + (1.25 + 65 / 64) + (1.5 + 66 / 64)
    made = RoundPrices(PROFILE, True, quiet=False).round((1, 1, 2), 5, 64, tree=5, rule="traversal")
    assert made == pytest.approx(passes + (9 + 3 + 4) + (3 + 5 + 1) + (5 + 10 + 2))


def test_rounds_of_chains_by_hand():
    """A rule stopped two tokens drawn in front of a third, having read two distributions and asked three times; the draft was one
    token behind. Then a lookup of two tokens and one drawn, and plain decoding as it runs."""
    prices = RoundPrices(AS_RUN, True, quiet=False)
    stopped = ReplayedRound(context=32, drafted=2, passes=3, behind=1, confidences=1, entropies=1, asked=3)
    passes = sum(COSTS["draft"](1, 32 + place) for place in range(3)) + 0.25  # of two rows, the first one
    outside = 0.125 * 2 * 3 + (0.5 + 0.25 * 2 + 1) + 0.125 + 0.1875 + 3 * 0.5
    expected = [COSTS["target"](3, 32) + passes + outside]
    found = ReplayedRound(context=32, drafted=3, passes=1, behind=2, looked_up=2)
    expected.append(COSTS["target"](4, 32) + COSTS["draft"](3, 32) + 0.125 * 2 + (0.5 + 0.25 * 3 + 1))
    none = ReplayedRound(context=32)
    expected.append((COSTS["target"](1, 32) + 1.5) * (8 + 1 / 16) / (COSTS["target"](1, 1) + 0.5))
    for made, seconds in zip((stopped, found, none), expected, strict=True):
        assert prices.rounds([made], question=0.5) == pytest.approx(seconds)
    assert prices.rounds([stopped, found, none], question=0.5) == pytest.approx(sum(expected))
    assert prices.prefill(64, drafts=False) == pytest.approx(10 + 32)
    assert prices.prefill(64, drafts=True) == pytest.approx(10 + 32 + 2 + 8)


def test_a_pass_with_guesses_by_hand():
    greedy, sampled = (RoundPrices(PROFILE, heat, quiet=False) for heat in (False, True))
    assert greedy.guessing_pass(4, 2, 32) == pytest.approx(9 + 3.5 + 2 + (5 + 4) + (1 / 16 + 4 / 32))
    assert sampled.guessing_pass(4, 2, 32) == pytest.approx(9 + 3.5 + 2 + (4 + 3) + (1 / 16 + 4 / 32))
    assert sampled.guessing_pass(0, 0, 32) == pytest.approx(chain_round(0, 32, True))


@pytest.mark.parametrize("sampled", [False, True])
def test_rounds_that_ran_are_priced_by_their_records(sampled):
    """A chain, a tree of three levels, and a round with branches after it."""
    chain = RoundRecord(drafted=3, accepted=1, emitted=2)
    tree = RoundRecord(drafted=6, levels=3, accepted=3, emitted=4)
    counts = {"drafted": 10, "levels": 7, "submitted": 3, "idle_levels": 3, "candidates": 2}
    branches = RoundRecord(**counts, accepted=3, emitted=4, concurrent=True)
    prices = RoundPrices(PROFILE, sampled, quiet=False)
    expected = prices.chain(3, 20) + prices.round((2, 2, 2), 6, 22, tree=6, rule="traversal")
    expected += prices.branch_round(ReplayedRound(**counts, accepted=3, context=26))
    assert prices.ran([chain, tree, branches], 20) == pytest.approx(expected)


def test_invariant_sampling_pays_for_the_noise_of_every_pass():
    greedy, perturbed = (RoundPrices(PROFILE, False, quiet=False, perturbed=one) for one in (False, True))

    def more(name, *given):
        return getattr(perturbed, name)(*given) - getattr(greedy, name)(*given)

    noise = COSTS["noise"]
    assert more("chain", 2, 32) == pytest.approx(noise(3) + 2 * noise(1))
    assert more("leaves", 2, 5, 32) == pytest.approx(noise(6) - noise(3))
    assert more("plain", 32) == pytest.approx(noise(1)) and more("law", 32) == pytest.approx(noise(1))
    assert more("catching_up", 2, 32) == 0 and more("prefill", 32, True) == 0
    settings = SamplingSettings(1.0), SamplingSettings(1.0, invariant=True)
    drawn, read_off = (RoundPrices.at(PROFILE, one).chain(2, 32) for one in settings)
    assert (2 * drawn, 2 * read_off) == pytest.approx((chain_round(2, 32, 1), perturbed.chain(2, 32)))


def test_plain_decoding_draws_nothing():
    tables = {name: PROFILE.tables[name] for name in ("target", "chain_verification", "target_prefill")}
    bare = LatencyProfile(tables, "toy", {}, {})
    assert RoundPrices(bare, False, quiet=False).plain(16) == pytest.approx(9.5 + 1 + 0.5)
    assert generation_latency(bare, [1.0], 0, 16, 2, False).seconds == pytest.approx(18 + 11)


def test_generation_by_hand():
    """Three tokens, γ = 1, α = .6: the prefill emits one, a round drafts one, and if it is refused a last round drafts none."""
    prediction = generation_latency(PROFILE, [0.4, 0.6], 1, prompt_tokens=20, new_tokens=3, sampled=False)
    prefills = (10 + 10) + (2 + 2.5)
    first = (1.25 + 20 / 64) + 0.125 + (9 + 1 + 20 / 16) + 0.75
    last = (9.5 + 21 / 16) + 0.5
    seconds = prefills + first + 0.4 * last
    assert prediction.seconds == pytest.approx(seconds)
    assert prediction.speeds(3) == pytest.approx((3 / seconds, 1 / seconds, 6 / seconds))


def test_a_longer_chains_law_serves_a_shorter_chain():
    law = [0.4, 0.3, 0.1, 0.2]
    assert generation_latency(PROFILE, law, 2, 20, 9, True) == generation_latency(
        PROFILE, truncated_law(law, 2), 2, 20, 9, True
    )
    with pytest.raises(ValueError, match="does not reach gamma=4"):
        generation_latency(PROFILE, law, 4, 20, 9, True)
    with pytest.raises(ValueError, match="new_tokens must be >= 1, got 0"):
        generation_latency(PROFILE, law, 2, 20, 0, True)


def play(outcomes, gamma, prompt_tokens, new_tokens, sampled, minds_budget=True):
    """Seconds of decoding as the runtime does, on the costs; ``outcomes`` gives each round's acceptance of a chain of γ."""
    seconds = COSTS["target_prefill"](prompt_tokens) + (COSTS["draft_prefill"](prompt_tokens) if gamma else 0)
    text = prompt_tokens + 1
    end = prompt_tokens + new_tokens
    while text < end:
        drafted = min(gamma, end - text - 1) if minds_budget else gamma
        seconds += chain_round(drafted, text - 1, sampled)
        text += min(next(outcomes), drafted) + 1
    return seconds


@pytest.mark.parametrize("sampled", [False, True])
def test_generation_against_simulation(sampled):
    rng = np.random.default_rng(3)
    law = np.array([0.3, 0.2, 0.1, 0.15, 0.25])
    outcomes = iter(rng.choice(5, p=law, size=400_000).tolist())
    prediction = generation_latency(PROFILE, law, 4, prompt_tokens=30, new_tokens=17, sampled=sampled)
    runs = np.array([play(outcomes, 4, 30, 17, sampled) for _ in range(20_000)])
    assert prediction.seconds == pytest.approx(runs.mean(), rel=0.004)
    # the wrong variant, which drafts γ tokens however few are left
    careless = np.array([play(outcomes, 4, 30, 17, sampled, minds_budget=False) for _ in range(20_000)])
    assert prediction.seconds != pytest.approx(careless.mean(), rel=0.01)


@untimed
@given(st.floats(0, 1), st.integers(0, 3), st.integers(1, 6))
def test_generation_against_enumeration(alpha, gamma, new_tokens):
    """Over all sequences of outcomes of as many rounds as there can be."""
    law = iid_accepted_law(alpha, gamma)
    expected = 0.0
    for outcomes in itertools.product(range(gamma + 1), repeat=new_tokens - 1):
        expected += math.prod(law[list(outcomes)]) * play(iter(outcomes), gamma, 30, new_tokens, 1)
    prediction = generation_latency(PROFILE, law, gamma, 30, new_tokens, True)
    assert prediction.seconds == pytest.approx(expected)
    assert prediction.low <= prediction.seconds <= prediction.high


def test_a_long_generation_tends_to_the_steady_state():
    level = LatencyProfile({name: t.of(t.median * 0 + 1) for name, t in PROFILE.tables.items()}, "level", {}, {})
    law = iid_accepted_law(0.7, 3)
    long = generation_latency(level, law, 3, 30, 2000, True)
    steady = (1 - 0.7**4) / (1 - 0.7) / RoundPrices(level, True).chain(3, 30)
    assert 2000 / long.seconds == pytest.approx(steady, rel=0.005)
