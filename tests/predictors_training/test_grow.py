"""Rules and models of chains with leaves: the choice is the best of all, arrays say what a level does, and what a fit learns."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from predictors.bundle import Bundle
from predictors.controllers.grow import Grow
from predictors.grow import (
    CANDIDATES,
    SCALARS,
    GrowCosts,
    Growing,
    GrowNetwork,
    GrowRule,
    GrowSetting,
    best_of,
    chances_of,
    features_of,
    logs_of,
    values_of,
)
from predictors.lookup import LookupSettings
from predictors.replay.chains import ChainPolicy
from predictors.replay.decode import Clock
from predictors.sampling import SamplingSettings
from predictors.training.grow_predictor import GrowPredictor, GrowTrainConfig
from predictors.training.tables import TextTable
from tests.predictors.affine_profile import toy_profile
from tests.predictors_training.synthetic_drafts import drafted_texts
from tests.predictors_training.synthetic_texts import CANDIDATES as WRONG
from tests.predictors_training.synthetic_texts import GAMMA_MAX, write_texts
from tests.predictors_training.test_stops import materials_in

PROFILE = toy_profile(
    target=lambda tokens, context: 9 + 0.125 * tokens + context / 16,
    tree_verification=lambda drafted, sampled: 0.5 + 0.125 * drafted + sampled,
    grow=lambda levels: 0.01 * levels,
)
CONFIG = GrowPredictor(
    training=GrowTrainConfig(hidden=16, learning_rate=3e-3, epochs=20, batch_size=128, seed=2),
    gamma=GAMMA_MAX,
    nodes=10,
    worths=(0.3, 0.7, 1.0),
    shares=(0.6, 0.8, 1.0, 1.3),
    folds=3,
)


@pytest.fixture(scope="module")
def random():
    return np.random.default_rng(0)


def test_of_all_chains_with_leaves_the_best_is_submitted(random):
    """Every other choice of widths along a chain, each at least one where the chain goes on."""
    wanted = set()
    for _ in range(60):
        values = values_of(chances_of(2 * random.normal(size=(3, CANDIDATES + 1))))
        nodes = 1 + np.cumsum(np.append(0.0, random.uniform(0.02, 0.3) * np.ones(12)))
        setting = GrowSetting(SamplingSettings(0.0), GrowRule(1.0, 1.0), True, 1, costs=GrowCosts(0.1, tuple(nodes)))
        gains = {
            widths: sum(values[level, :width].sum() for level, width in enumerate(widths)) - nodes[sum(widths)]
            for widths in product(range(CANDIDATES + 1), repeat=3)
            if all(before or not after for before, after in pairwise(widths))
        }
        chosen = tuple(setting.widths(values).tolist())
        assert gains[chosen] == pytest.approx(max(gains.values()))
        wanted |= {chosen}
    assert len(wanted) > 6


def test_arrays_of_rounds_are_chosen_one_by_one(random):
    values_RLK = values_of(chances_of(random.normal(size=(20, 5, CANDIDATES + 1))))
    survives_RN = np.cumprod(random.random((20, 6)) ** 0.3, axis=-1)
    setting = GrowSetting(
        SamplingSettings(0.0), GrowRule(2.0, 1.0), True, 1, costs=GrowCosts(0.1, (1.0, 1.05, 1.1, 1.3, 1.4, 1.6))
    )
    count_R, left_R = setting.looked_up(survives_RN)
    both = [setting.looked_up(survives_N) for survives_N in survives_RN]
    assert list(zip(count_R.tolist(), left_R.tolist(), strict=True)) == both and len(set(count_R.tolist())) > 2
    for beside_R in (np.zeros(20, int), count_R):
        widths = [setting.widths(*row).tolist() for row in zip(values_RLK, beside_R, strict=True)]
        assert setting.widths(values_RLK, beside_R).tolist() == widths
        fits = [sum(row) + beside < len(setting.costs.nodes) for row, beside in zip(widths, beside_R, strict=True)]
        assert all(fit or not any(row) for row, fit in zip(widths, fits, strict=True)), "what has no price"
    assert best_of(values_RLK, 4).sum(axis=-1).tolist() == [4] * 20


@pytest.mark.parametrize("invariant", [False, True])
def test_a_level_in_plain_numbers_is_a_row_of_arrays(random, invariant):
    growing = Growing(GrowNetwork(8).eval())
    logs = logs_of(np.sort(random.dirichlet(np.ones(6), size=4))[:, ::-1])
    features = features_of(logs, invariant)
    chances_LK, distance_L = growing(features)
    total, previous = 0.0, 0.0
    for level, row in enumerate(logs.tolist()):
        own = [*row, total, previous, level, float(invariant)]
        assert own == pytest.approx(features[level]) and len(own) == len(SCALARS)
        chances_K, distance, _ = growing.of_one(own)
        assert chances_K == pytest.approx(chances_LK[level]) and distance == pytest.approx(distance_L[level])
        total, previous = total + row[0], row[0]
    outputs = growing_controller(growing).outputs(torch.from_numpy(features).float())
    assert outputs.detach().numpy() == pytest.approx(chances_LK, abs=1e-5)


def growing_controller(growing):
    controller, network = object.__new__(Grow), GrowNetwork(8)
    weights = {"mean": growing._mean_F, "scale": 1 / growing._inverse_F}
    for place, (weight, bias) in zip((0, 2), growing._layers, strict=True):
        weights |= {f"head.{place}.weight": weight, f"head.{place}.bias": bias}
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    controller.network = network.eval()
    return controller


def leafed_texts(informative):
    """Of the misses half have the text's token second."""
    random, texts = np.random.default_rng(5), drafted_texts(informative, lookups="agree" if informative else "none")
    for text in texts:
        second = np.where(random.random(text["rank"].shape) < 0.5, 1, 9)
        text["rank"] = np.where(text["rank"] == WRONG, second, text["rank"])
    return texts


def materials_of(folder, informative=True):
    made = materials_in(folder / "plain", informative=informative)
    return replace(made, texts=write_texts(folder / "leafed", leafed_texts(informative)), profile=PROFILE)


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    return materials_of(tmp_path_factory.mktemp("materials"))


@pytest.fixture(scope="module")
def fitted(materials):
    return CONFIG.fit("grow", materials)


def test_a_model_that_knows_gains(fitted):
    part, known = fitted.quality["parts"]["T=0"], fitted.quality["known"]["T=0"]
    gains = {name: one["gain"] for name, one in part["policies"].items()}
    assert part["asks"] and gains["model"]["low"] > gains["leaves"]["value"] > 0.02
    assert gains["asked for nothing"]["value"] > gains["asked"]["value"] > gains["without lookups"]["value"]
    assert known["tokens"]["auroc"] > 0.65 and known["tokens"]["ece"] < 0.08
    assert sum(part["static_leaves"]) > 0, "half of the misses are the second candidate's"


def test_one_that_does_not_is_not_asked(tmp_path):
    blind = CONFIG.fit("grow", materials_of(tmp_path, informative=False))
    (part,) = blind.quality["parts"].values()
    policies = part["policies"]
    assert not part["asks"] and policies["model"]["tokens_per_second"] == policies["leaves"]["tokens_per_second"]


def test_what_is_promised_is_what_real_sessions_do(materials, fitted):
    controller = Grow.from_bundle(Bundle(fitted.card, fitted.tensors))
    drafter = fitted.card["decoder"]["drafter"]
    lookup = LookupSettings(**drafter["lookup"])
    policy = ChainPolicy(controller, GAMMA_MAX, lookup=lookup, leaves=tuple(drafter["leaves"]))
    texts = [text for text in TextTable.read(materials.texts).rows("test").texts() if text.settings.greedy]
    decodes = [Clock(PROFILE).policy(text, policy) for text in texts]
    assert sum(one.looked_up for one in decodes) > 10, "lookups that are drafted alone"
    speed = sum(one.tokens for one in decodes) / sum(one.seconds for one in decodes)
    assert fitted.quality["parts"]["T=0"]["policies"]["model"]["tokens_per_second"] == pytest.approx(speed)


def test_the_card_drafts_a_chain_where_a_coin_decides(materials, fitted):
    again = CONFIG.fit("grow", materials)
    assert again.card == fitted.card, "not the same for the same files"
    assert fitted.card["decoder"]["verifier"] == "block", "of invariant sampling nothing was traced"
    sampled = next(one for one in fitted.card["settings"] if one["settings"]["temperature"])
    assert not sampled["pays"] and sampled["static_length"] > 0
