"""Throughput formulas: by hand, against enumeration and against simulation of the process itself."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.latency import (
    AcceptanceStatistics,
    LatencyProfile,
    LatencyTable,
    Shape,
    branch_parallel_latency,
    chain_block_efficiency,
    draft_cost,
    generation_latency,
    iid_accepted_law,
    round_latency,
    tokens_per_second,
    truncated_law,
)

untimed = settings(deadline=None, derandomize=True)
PROBABILITIES = st.floats(0, 1)
CHAINS = st.integers(0, 8)

# Affine costs in seconds, so that interpolation is exact and a test can compute them without a table.
COSTS = {
    "draft": lambda rows, context: 1 + 0.25 * rows + context / 64,
    "target": lambda tokens, context: 9 + 0.5 * tokens + context / 16,
    "draft_prefill": lambda tokens: 2 + tokens / 8,
    "target_prefill": lambda tokens: 10 + tokens / 2,
    "chain_drawing": lambda drafted, sampled: 0.125 * drafted * (1 + sampled),
    "chain_verification": lambda drafted, sampled: 0.5 + 0.25 * drafted + sampled,
    "tree_drawing": lambda drafted, sampled: 3 + drafted + sampled,
    "tree_verification": lambda drafted, sampled: 5 + 2 * drafted + 2 * sampled,
}
AXES = {"rows": (1, 9), "tokens": (1, 33), "context": (1, 512), "drafted": (0, 16), "sampled": (0, 1)}


def toy_profile():
    """Low is half the median, high three times."""
    tables = {}
    for name, cost in COSTS.items():
        names = cost.__code__.co_varnames[: cost.__code__.co_argcount]
        axes = {axis: AXES[axis] for axis in names}
        cells = [cost(*point) for point in itertools.product(*axes.values())]
        median = np.array(cells).reshape([len(grid) for grid in axes.values()]) + 1e-9  # drawing 0 tokens takes no time
        tables[name] = LatencyTable(axes, median, median / 2, 3 * median, 10)
    return LatencyProfile(tables, "toy", {}, {})


PROFILE = toy_profile()


def chain_round(drafted, context, sampled):
    """Seconds of a chain's round, straight from the costs."""
    passes = sum(COSTS["draft"](1, context + place) for place in range(drafted))
    outside = COSTS["chain_drawing"](drafted, sampled) + COSTS["chain_verification"](drafted, sampled)
    return passes + outside + COSTS["target"](1 + drafted, context)


def test_a_drafted_token_in_target_passes():
    """Steps at contexts 10 and 11 and two draws, per token, over the pass of three with its verdict."""
    drafting = (1.25 + 10 / 64) + (1.25 + 11 / 64) + 0.125 * 2 * 2
    verifying = 9 + 1.5 + 10 / 16 + 0.5 + 0.5 + 1
    assert draft_cost(PROFILE, 2, context=10, sampled=True) == pytest.approx(drafting / 2 / verifying)


def enumerated_block_efficiency(alpha, gamma):
    """Over all outcomes of γ independent tests: the accepted prefix and the target's own token."""
    total = 0.0
    for tests in itertools.product([True, False], repeat=gamma):
        probability = math.prod(alpha if passed else 1 - alpha for passed in tests)
        total += probability * (1 + sum(1 for _ in itertools.takewhile(bool, tests)))
    return total


@untimed
@given(PROBABILITIES, CHAINS)
def test_block_efficiency_against_enumeration(alpha, gamma):
    assert chain_block_efficiency(alpha, gamma) == pytest.approx(enumerated_block_efficiency(alpha, gamma))


@untimed
@given(st.floats(0, 0.999), CHAINS)
def test_block_efficiency_is_the_closed_form(alpha, gamma):
    assert chain_block_efficiency(alpha, gamma) == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha))


def test_block_efficiency_at_and_near_one():
    assert chain_block_efficiency(1.0, 5) == 6
    assert chain_block_efficiency(1 - 1e-16, 5) == pytest.approx(6)
    assert chain_block_efficiency(0.0, 5) == 1


@pytest.mark.parametrize(
    ("action", "rows", "nodes"),
    [
        ((3, 1, 3), (1, 1, 3, 3), 10),  # feed the newest token, the trunk's, then two levels of three
        ((3, 0, 1), (1,), 3),  # three candidates from one law
        ((4, 2, 1), (1, 1, 1), 6),
        ((2, 0, 3), (1, 2, 2), 6),
        ((3, 2, 0), (1, 1), 2),  # no branches: a chain of the trunk
        ((1, 2, 3), (1, 1, 1, 1, 1), 5),  # one rollout: a chain of five
    ],
)
def test_delayed_tree_by_hand(action, rows, nodes):
    assert Shape.delayed_tree(*action) == Shape(rows, nodes)


def test_chains():
    assert Shape.chain(3) == Shape((1, 1, 1), 3) == Shape.delayed_tree(1, 1, 2) == Shape.delayed_tree(5, 3, 0)
    assert Shape.chain(0) == Shape((), 0)
    assert Shape.chain(0).is_chain and Shape.chain(2).is_chain
    assert not Shape.delayed_tree(2, 0, 1).is_chain and not Shape.delayed_tree(2, 1, 2).is_chain


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="gamma must be >= 0, got -1"):
        Shape.chain(-1)
    with pytest.raises(ValueError, match="a delayed tree needs .* got k=2, l1=0, l2=0"):
        Shape.delayed_tree(2, 0, 0)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("drafted", [0, 1, 4])
def test_round_of_a_chain(drafted, sampled):
    latency = round_latency(PROFILE, Shape.chain(drafted), 40, sampled)
    assert latency.seconds == pytest.approx(chain_round(drafted, 40, sampled))
    assert (latency.low, latency.high) == pytest.approx((latency.seconds / 2, latency.seconds * 3))


def test_round_of_a_tree_by_hand():
    """(2, 1, 2) at context 64: passes of 1, 1 and 2 rows, then five nodes and the newest token."""
    passes = (1.25 + 64 / 64) + (1.25 + 65 / 64) + (1.5 + 66 / 64)
    assert round_latency(PROFILE, Shape.delayed_tree(2, 1, 2), 64, True).seconds == pytest.approx(
        passes + (9 + 3 + 4) + (3 + 5 + 1) + (5 + 10 + 2)
    )


def test_plain_decoding_draws_nothing():
    tables = {name: PROFILE.tables[name] for name in ("target", "chain_verification", "target_prefill")}
    bare = LatencyProfile(tables, "toy", {}, {})
    assert round_latency(bare, Shape.chain(0), 16, False).seconds == pytest.approx(9.5 + 1 + 0.5)
    assert generation_latency(bare, [1.0], 0, 16, 2, False).seconds == pytest.approx(18 + 11)


def test_steady_state_by_hand():
    prediction = tokens_per_second(PROFILE, Shape.chain(2), 2.2, 40, False)
    seconds = chain_round(2, 40, 0)
    assert (prediction.seconds, prediction.rounds) == (pytest.approx(seconds), 1)
    assert prediction.tokens_per_second == pytest.approx(2.2 / seconds)
    assert (prediction.low, prediction.high) == pytest.approx((2.2 / (3 * seconds), 2.2 / (seconds / 2)))
    with pytest.raises(ValueError, match="block_efficiency .* must be >= 1, got 0.7"):
        tokens_per_second(PROFILE, Shape.chain(2), 0.7, 40, False)


def test_generation_by_hand():
    """Three tokens, γ = 1, α = .6: the prefill emits one, a round drafts one, and if it is refused a last round drafts none."""
    prediction = generation_latency(PROFILE, [0.4, 0.6], 1, prompt_tokens=20, new_tokens=3, sampled=False)
    prefills = (10 + 10) + (2 + 2.5)
    first = (1.25 + 20 / 64) + 0.125 + (9 + 1 + 20 / 16) + 0.75
    last = (9.5 + 21 / 16) + 0.5
    seconds = prefills + first + 0.4 * last
    assert prediction.seconds == pytest.approx(seconds)
    assert prediction.rounds == pytest.approx(1.4)
    assert prediction.tokens_per_second == pytest.approx(3 / seconds)
    assert (prediction.low, prediction.high) == pytest.approx((1 / seconds, 6 / seconds))


def test_generation_of_one_token_is_the_prefills():
    assert generation_latency(PROFILE, [0.4, 0.6], 1, 20, 1, True).seconds == pytest.approx(20 + 4.5)
    plain = generation_latency(PROFILE, [0.4, 0.6], 0, 20, 1, True)
    assert (plain.seconds, plain.rounds) == (pytest.approx(20), 0)


def test_plain_generation_is_one_round_a_token():
    prediction = generation_latency(PROFILE, [1.0], 0, 20, 6, False)
    assert prediction.rounds == 5
    assert prediction.seconds == pytest.approx(20 + sum(chain_round(0, 20 + place, 0) for place in range(5)))


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
    """Decode as the runtime does, on the costs; ``outcomes`` gives each round's acceptance of a chain of γ. Seconds, rounds."""
    seconds = COSTS["target_prefill"](prompt_tokens) + (COSTS["draft_prefill"](prompt_tokens) if gamma else 0)
    text, rounds = prompt_tokens + 1, 0
    end = prompt_tokens + new_tokens
    while text < end:
        drafted = min(gamma, end - text - 1) if minds_budget else gamma
        seconds += chain_round(drafted, text - 1, sampled)
        text += min(next(outcomes), drafted) + 1
        rounds += 1
    return seconds, rounds


@pytest.mark.parametrize("sampled", [False, True])
def test_generation_against_simulation(sampled):
    rng = np.random.default_rng(3)
    law = AcceptanceStatistics([[30, 20, 10, 15, 25]]).accepted_law(4)
    outcomes = iter(rng.choice(5, p=law, size=400_000).tolist())
    prediction = generation_latency(PROFILE, law, 4, prompt_tokens=30, new_tokens=17, sampled=sampled)
    runs = np.array([play(outcomes, 4, 30, 17, sampled) for _ in range(20_000)])
    assert [prediction.seconds, prediction.rounds] == pytest.approx(runs.mean(axis=0).tolist(), rel=0.004)
    # the wrong variant, which drafts γ tokens however few are left
    careless = np.array([play(outcomes, 4, 30, 17, sampled, minds_budget=False) for _ in range(20_000)])
    assert prediction.seconds != pytest.approx(careless.mean(axis=0)[0], rel=0.01)


@untimed
@given(PROBABILITIES, st.integers(0, 3), st.integers(1, 6))
def test_generation_against_enumeration(alpha, gamma, new_tokens):
    """Over all sequences of outcomes of as many rounds as there can be."""
    law = iid_accepted_law(alpha, gamma)
    expected = np.zeros(2)
    for outcomes in itertools.product(range(gamma + 1), repeat=new_tokens - 1):
        expected += math.prod(law[list(outcomes)]) * np.array(play(iter(outcomes), gamma, 30, new_tokens, 1))
    prediction = generation_latency(PROFILE, law, gamma, 30, new_tokens, True)
    assert [prediction.seconds, prediction.rounds] == pytest.approx(expected.tolist())
    assert prediction.low <= prediction.tokens_per_second <= prediction.high


def test_a_long_generation_tends_to_the_steady_state():
    tables = {
        name: LatencyTable(t.axes, t.median * 0 + 1, t.low * 0 + 1, t.high * 0 + 1, 1)
        for name, t in PROFILE.tables.items()
    }
    level = LatencyProfile(tables, "level", {}, {})
    law = iid_accepted_law(0.7, 3)
    long = generation_latency(level, law, 3, 30, 2000, True)
    steady = tokens_per_second(level, Shape.chain(3), chain_block_efficiency(0.7, 3), 30, True)
    assert long.tokens_per_second == pytest.approx(steady.tokens_per_second, rel=0.005)


def simulated_branch_parallel(alpha, pending, depth, hit, draft, target, stages=60_000):
    """Seconds and tokens of the stage process: draft stage (target idle), then branch stages until a rollback."""
    rng = np.random.default_rng(11)
    seconds, tokens, in_draft_stage = 0.0, 0, True
    for tests, branch_test in zip(rng.random((stages, pending)).tolist(), rng.random(stages).tolist(), strict=True):
        if in_draft_stage:
            seconds += pending * draft
        seconds += max(depth * draft, target)  # the target verifies while the draft expands its branches
        accepted = len(list(itertools.takewhile(lambda test: test < alpha, tests)))
        tokens += accepted + 1  # the corrected token, or the target's own at the branch point
        in_draft_stage = accepted < pending or branch_test >= hit
    return seconds, tokens, stages


@pytest.mark.parametrize(
    ("alpha", "pending", "depth", "hit", "draft", "target"),
    [
        (0.7, 4, 10, 0.7, 1.0, 10.0),
        (0.9, 8, 10, 0.95, 1.0, 10.0),
        (0.5, 2, 5, 0.6, 2.0, 7.0),  # the draft is the slower job
        (0.8, 0, 3, 0.4, 1.0, 4.0),
    ],
)
def test_renewal_model_against_simulation(alpha, pending, depth, hit, draft, target):
    model = branch_parallel_latency(alpha, pending, depth, hit, draft, target)
    seconds, tokens, stages = simulated_branch_parallel(alpha, pending, depth, hit, draft, target)
    assert model == pytest.approx(seconds / tokens, rel=0.01)
    if pending:  # the wrong variant, which ignores the token the target adds
        assert model != pytest.approx(seconds / (tokens - stages), rel=0.05)


@pytest.mark.parametrize(("alpha", "best"), [(0.5, 2), (0.7, 4), (0.9, 8)])
def test_the_renewal_models_optimum_depends_on_acceptance(alpha, best):
    """The specification's own values, at c = G = 10 and a hit probability of α."""
    cost = [branch_parallel_latency(alpha, pending, 10, alpha, 1.0, 10.0) for pending in range(10)]
    assert int(np.argmin(cost)) == best


def test_renewal_model_by_hand():
    # a stage of max(3, 5) steps, a re-draft of 2 with probability 1 - .25 * .8, and 1 + .5 + .25 tokens
    assert branch_parallel_latency(0.5, 2, 3, 0.8, 1.0, 5.0) == pytest.approx((5 + 0.8 * 2) / 1.75)
    assert branch_parallel_latency(1.0, 2, 3, 1.0, 1.0, 2.0) == pytest.approx(3 / 3)  # never a rollback
    with pytest.raises(ValueError, match=r"pending must lie in \[0, depth - 1\], got 3: a branch of depth 3"):
        branch_parallel_latency(0.5, 3, 3, 0.8, 1.0, 5.0)
    with pytest.raises(ValueError, match="hit must lie in"):
        branch_parallel_latency(0.5, 2, 3, 1.8, 1.0, 5.0)
