"""Prices of rounds: the profile's cells refined by timed rounds, with how fast the machine was in every block."""

from dataclasses import fields

import numpy as np
import pytest

from pipelines.gate.evidence.prices import COMPONENTS, K, PriceFit, RoundParts
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from tests.pipelines.hand_made_profile import PROFILE
from tests.predictors.affine_profile import PROFILE as AFFINE

DRAFT, REST = COMPONENTS.index("draft"), COMPONENTS.index("rest")
PROFILED = LatencyProfile.from_record(PROFILE, "PROFILE")


def cells(factors, speeds, shape):
    """Exact cells: ``shape`` [B, K] profiled seconds, each measured as factor times the block's speed; the rounds are 1."""
    shape_BK = np.asarray(shape, float)
    measured_BK = shape_BK * np.asarray(factors) * np.asarray(speeds)[:, None]
    return PriceFit(np.array([f"d{n // 2}" for n in range(len(speeds))]), measured_BK, shape_BK, (shape_BK > 0) * 1.0)


def made(seed=0, blocks=8):
    """Slow blocks draft more: half of them have no plain target pass."""
    draw = np.random.default_rng(seed)
    shape = draw.uniform(0.5, 2.0, (blocks, K))
    slow = np.arange(blocks) % 2 == 0
    shape[~slow, DRAFT] = 0
    shape[slow, COMPONENTS.index("target-1")] = 0
    factors = draw.uniform(0.7, 1.4, K)
    return cells(factors, np.where(slow, 1.25, 0.8), shape), factors


def by_component(known):
    return dict(zip(COMPONENTS, known.factors_K.tolist(), strict=True))


def test_factors_are_those_of_a_machine_at_its_usual_speed():
    known, factors = made()
    found = known.factors_K
    np.testing.assert_allclose(found, factors, rtol=1e-9)
    pooled = known.measured_BK.sum(axis=0) / known.profiled_BK.sum(axis=0)
    assert abs(pooled[DRAFT] / factors[DRAFT] - 1) > 0.2, "sums over blocks take slow blocks for slow drafting"


def test_a_fit_without_a_document_never_saw_it():
    known, _ = made(1)
    noise = np.random.default_rng(2).normal(0, 0.1, known.measured_BK.shape)
    noisy = PriceFit(known.document_B, known.measured_BK * np.exp(noise), known.profiled_BK, known.rounds_BK)
    for document, factors_K in zip(("d0", "d3", "unknown"), noisy.without_each(("d0", "d3", "unknown")), strict=True):
        left_B = noisy.document_B != document
        alone = PriceFit(**{one.name: getattr(noisy, one.name)[left_B] for one in fields(noisy)})
        np.testing.assert_allclose(factors_K, alone.factors_K, rtol=1e-9)
    assert not np.allclose(noisy.without("d0"), noisy.factors_K)


def test_what_was_never_measured_keeps_the_profile():
    shape = np.ones((4, K))
    shape[:, [DRAFT, REST]] = 0
    found = cells(np.full(K, 1.3), np.ones(4), shape).factors_K
    assert found[DRAFT] == 1 and found[REST] == 0 and found[COMPONENTS.index("verify")] == pytest.approx(1.3)
    nothing = PriceFit(np.array([], dtype=str), *(np.zeros((0, K)) for _ in range(3)))
    assert nothing.factors_K.tolist() == [1.0] * (K - 1) + [0.0]
    assert by_component(cells(np.full(K, 1.3), np.ones(4), shape))["verify"] == pytest.approx(1.3)


def rounds_of(arm, block, factor, question=0.0):
    """A prefill and two rounds, each measured as ``factor`` times the profile."""
    parts = RoundParts(PROFILED, sampled=False)
    shared = {"arm": arm, "block": block, "temperature": 0.0, "overlapped": 0.0, "asked": 0}
    prefill = parts.prefill(16, drafts=True)[0] * factor
    rows = [
        shared | {"prefill": True, "context": 0, "passes": 0, "submitted": 0, "nodes": 0, "seconds_target": prefill / 2}
    ]
    rows[0] |= {"seconds_draft": prefill / 2, "seconds_verify": 0.0, "seconds_controller": 0.0}
    for context in (40, 45):
        made = dict(zip(COMPONENTS, parts.round(context, 3, 3, question) * factor, strict=True))
        seconds = {"seconds_draft": made["draft"], "seconds_target": made["target-4"], "seconds_verify": made["verify"]}
        shape = {
            "prefill": False,
            "context": context,
            "passes": 3,
            "submitted": 3,
            "nodes": 3,
            "asked": int(question > 0),
        }
        rows.append(shared | shape | seconds | {"seconds_controller": made["question"]})
    return rows


def test_cells_come_from_rounds():
    """Every phase took 1.1 times what the profile says, and each of two rounds 2 ms between its phases."""
    rounds = (
        rounds_of("chain-3", "p/0", 1.1) + rounds_of("stop", "p/0", 1.1, question=1e-4) + rounds_of("x", "q/0", 1.1)
    )
    decodes = []
    for arm, block in (("chain-3", "p/0"), ("stop", "p/0"), ("x", "q/0")):
        own = [row for row in rounds if (row["arm"], row["block"]) == (arm, block)]
        seconds = sum(row[name] for row in own for name in row if name.startswith("seconds_")) + 0.004
        decodes.append(
            {"arm": arm, "block": block, "document": block[0], "prompt_tokens": 16, "seconds": seconds, "order": arm}
        )
    known = PriceFit.of(decodes, rounds, PROFILED, {"stop": 1e-4})
    fit = by_component(known)
    for name in ("prefill", "draft", "target-4", "verify", "question"):
        assert fit[name] == pytest.approx(1.1), name
    assert fit["rest"] == pytest.approx(0.002) and fit["target-1"] == 1
    assert known.document_B.tolist() == ["p", "q"]
    copies = [row | {"arm": "challenger"} for row in (decodes[0], *rounds) if row["arm"] == "chain-3"]
    same(PriceFit.of([*decodes, copies[0]], [*rounds, *copies[1:]], PROFILED, {"stop": 1e-4}), known)
    unlike = [row | {"overlapped": 0.001} for row in rounds] + [row | {"nodes": 9} for row in rounds]
    assert PriceFit.of(decodes, unlike, PROFILED).measured_BK.shape == (0, K), "neither side by side, nor trees"


def decode_of(rounds, between=0.004):
    """The decode of those rounds, with so many seconds between their phases."""
    seconds = sum(row[name] for row in rounds for name in row if name.startswith("seconds_")) + between
    arm, block = rounds[0]["arm"], rounds[0]["block"]
    return {"arm": arm, "block": block, "document": block[0], "prompt_tokens": 16, "seconds": seconds, "order": arm}


def same(made, wanted):
    for one in fields(wanted):
        np.testing.assert_array_equal(getattr(made, one.name), getattr(wanted, one.name))


def test_a_draft_model_that_a_lookup_left_behind_catches_up():
    """A round that drew nothing emitted 5 tokens; the next draws one after 2 of a lookup: its pass feeds 7 more than usual."""
    rounds, parts = rounds_of("lookup", "p/0", 1.0), RoundParts(PROFILED, sampled=False)
    for row, passes, looked_up, emitted in zip(rounds, (0, 0, 1), (0, 3, 2), (1, 5, 1), strict=True):
        row |= {"passes": passes, "looked_up": looked_up, "emitted": emitted}
    known = PriceFit.of([decode_of(rounds)], rounds, PROFILED)
    (profiled,) = known.profiled_BK[:, DRAFT]
    assert profiled == pytest.approx(parts.round(45, 1, 3, behind=7)[DRAFT])
    assert profiled > parts.round(45, 1, 3)[DRAFT]


def test_a_tree_beside_a_chain_says_nothing():
    """Its prefill is one like any other, and the rest of its decode is not a chain's: the wrong twin knows of no tree."""
    chain, tree = rounds_of("chain-3", "p/0", 1.1), rounds_of("tree", "p/0", 1.1)
    tree[1:] = [row | {"nodes": 9} for row in tree[1:]]
    decodes = [decode_of(chain), decode_of(tree, between=0.1)]
    alone = PriceFit.of(decodes[:1], chain, PROFILED)
    same(PriceFit.of(decodes, chain + tree, PROFILED), alone)
    assert by_component(alone)["rest"] == pytest.approx(0.002)
    wrong = by_component(PriceFit.of(decodes, chain + tree[:1], PROFILED))["rest"]
    assert wrong > 25 * 0.002
    beside = [*tree[:1], tree[1] | {"nodes": 3}, tree[2] | {"nodes": 3, "overlapped": 0.001}]
    same(PriceFit.of(decodes, chain + beside, PROFILED), alone)


def test_seconds_that_the_profile_has_no_price_for_are_left_out():
    """Queries of a model without a price, beside one with: the sum of both would be twice as dear."""
    priced, free = (rounds_of(arm, "p/0", 1.1, question=1e-4) for arm in ("stop", "free"))
    known = PriceFit.of([decode_of(priced), decode_of(free)], priced + free, PROFILED, {"stop": 1e-4})
    assert by_component(known)["question"] == pytest.approx(1.1)
    assert known.measured_BK[0, COMPONENTS.index("question")] == pytest.approx(2 * 1.1e-4)
    assert by_component(known)["rest"] == pytest.approx(0.002), "and they are no rest, either"


@pytest.mark.parametrize("sampled", [False, True])
def test_parts_add_up_to_the_prices_of_replay(sampled):
    """One price table: what replay ranks policies by is the sum over parts, without seconds a round."""
    parts, prices = RoundParts(AFFINE, sampled), RoundPrices(AFFINE, sampled)
    for submitted, context in ((0, 32), (4, 100)):
        made = parts.round(context, submitted, submitted, deciding=0.002)
        assert made[:-1].sum() == pytest.approx(prices.chain(submitted, context) + 0.002) and made[-1] == 1
    assert parts.prefill(20, True).sum() == pytest.approx(prices.prefill(20, True))
    assert parts.prefill(20, True).sum() > parts.prefill(20, False).sum()
    assert parts.reading(3, 2) == pytest.approx(prices.reading(3, 2)) and parts.reading(0, 0) == 0
