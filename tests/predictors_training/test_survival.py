"""Survival models fitted on texts whose chances are known: what they learn, and that their promise is what sessions do."""

from dataclasses import replace

import numpy as np
import pytest

from predictors.bundle import Bundle
from predictors.controllers.survival import Survival
from predictors.replay.chains import ChainPolicy
from predictors.replay.decode import Clock
from predictors.training.survival_model import SurvivalTrainConfig
from predictors.training.survival_predictor import SurvivalPredictor
from predictors.training.tables import TextTable
from tests.predictors.affine_profile import toy_profile
from tests.predictors_training.synthetic_texts import GAMMA_MAX
from tests.predictors_training.test_stops import materials_in

PROFILE = toy_profile(
    draft=lambda rows, context: 0.75 + rows / 4 + context / 64, survival=lambda positions: 0.01 * positions
)
CONFIG = SurvivalPredictor(
    training=SurvivalTrainConfig(hidden=16, learning_rate=3e-3, weight_decay=1e-4, epochs=12, batch_size=128, seed=2),
    gamma=GAMMA_MAX,
    lookup=GAMMA_MAX,
    shares=(0.5, 0.8, 1.0, 1.2, 1.5),
    least=(1, 2),
    folds=3,
    cost_ratios=(3.0, 12.0),
    calibrated_tokens=3,
)


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    return replace(materials_in(tmp_path_factory.mktemp("materials")), profile=PROFILE)


@pytest.fixture(scope="module")
def fitted(materials):
    return CONFIG.fit("survival", materials)


def test_what_is_promised_is_what_real_sessions_do(materials, fitted):
    """Σ tokens / Σ seconds of the bundle's own sessions on test texts, served and forced."""
    controller = Survival.from_bundle(Bundle(fitted.card, fitted.tensors))
    clock, texts = Clock(PROFILE), list(TextTable.read(materials.texts).rows("test").texts())
    for setting, part in fitted.quality["parts"].items():
        of_setting = [text for text in texts if text.settings.name == setting]
        for policy, served in (("model", controller), ("asked", controller.asked_anyway())):
            decodes = [clock.policy(text, ChainPolicy(served, GAMMA_MAX)) for text in of_setting]
            speed = sum(one.tokens for one in decodes) / sum(one.seconds for one in decodes)
            assert part["policies"][policy]["tokens_per_second"] == pytest.approx(speed), (setting, policy)
        asked, rounds = (sum(getattr(one, name) for one in decodes) for name in ("asked", "rounds"))
        assert part["queries"] == pytest.approx(asked / rounds)


def test_a_model_that_knows_gains_and_one_that_does_not_is_not_asked(materials, fitted, tmp_path):
    for name, part in fitted.quality["parts"].items():
        assert part["asks"] and part["policies"]["model"]["gain"]["value"] > 0.02, name
        assert part["policies"]["asked for nothing"]["gain"]["value"] > part["policies"]["asked"]["gain"]["value"]
        assert part["policies"]["perfect"]["gain"]["value"] > part["policies"]["asked"]["gain"]["value"]
        known = fitted.quality["known"][name]
        assert known["tokens"]["auroc"] > 0.65 and known["tokens"]["ece"] < 0.08
        predicted, observed = (np.array(known["product_bias"][part]) for part in ("predicted", "observed"))
        error = np.sqrt(observed * (1 - observed) / known["rounds"])
        assert (np.abs(predicted - observed) < 3 * error + 0.01).all()
    blind = CONFIG.fit("survival", replace(materials_in(tmp_path, informative=False), profile=PROFILE))
    for part in blind.quality["parts"].values():
        assert not part["asks"]
        assert part["policies"]["model"]["tokens_per_second"] == part["policies"]["static"]["tokens_per_second"]


def test_the_card_holds_rates_for_other_machines(materials, fitted):
    again = CONFIG.fit("survival", materials)
    assert again.card == fitted.card, "not the same for the same files"
    for made in fitted.card["settings"]:
        low, high = made["elsewhere"]
        assert low["cost_ratio"] < high["cost_ratio"] and low["static_length"] <= high["static_length"]
        assert len(made["costs"]) == GAMMA_MAX + 1 and made["costs"][0] == 1
    assert fitted.card["decoder"]["drafter"]["lookup"] == {"length": GAMMA_MAX}


def test_chains_may_be_shorter_than_the_products_that_are_calibrated(materials):
    short = replace(
        CONFIG, gamma=2, shares=(1.0,), least=(1,), cost_ratios=(), training=replace(CONFIG.training, epochs=1)
    )
    made = short.fit("survival", materials)
    assert all(len(known["product_bias"]["observed"]) == 2 for known in made.quality["known"].values())
