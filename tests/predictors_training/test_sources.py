"""Controllers that choose a source, on texts with planted lookups: what they learn, and that sessions do what is promised."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from predictors.bundle import OTHERWISE, Bundle
from predictors.controllers import CONTROLLERS
from predictors.controllers.source import Seen
from predictors.controllers.survival import Survival
from predictors.lookup import LookupSettings
from predictors.replay.chains import ChainPolicy
from predictors.replay.decode import Clock
from predictors.training.source_contest import hazard_of
from predictors.training.source_predictor import SOURCE, TAKEOVER, SourcePredictor
from predictors.training.tables import TextTable
from tests.predictors_training.synthetic_drafts import BAD, GOOD, LONG
from tests.predictors_training.synthetic_texts import GAMMA_MAX
from tests.predictors_training.test_stops import materials_in
from tests.predictors_training.test_survival import CONFIG as SURVIVAL
from tests.predictors_training.test_survival import PROFILE

CONFIG = SourcePredictor(
    survival=replace(SURVIVAL, training=replace(SURVIVAL.training, epochs=4), cost_ratios=(), shares=(0.8, 1.0, 1.2)),
    matches=(1, LONG, 8),
    lengths=(2, GAMMA_MAX),
    tails=(0, 2),
    shares=(0.8, 1.0, 1.3),
    paces=(1.0, 1.2),
    folds=3,
)


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    """By what tells good lookups."""
    folders = {told_by: tmp_path_factory.mktemp(told_by) for told_by in ("match", "agree", "none")}
    return {
        told_by: replace(materials_in(folder, lookups=told_by), profile=PROFILE) for told_by, folder in folders.items()
    }


@pytest.fixture(scope="module")
def fitted(materials):
    """By kind and what tells good lookups."""
    wanted = (TAKEOVER, "match"), (SOURCE, "agree"), (SOURCE, "none")
    return {one: replace(CONFIG, kind=one[0]).fit(one[0], materials[one[1]]) for one in wanted}


def rate_of(controller, texts, setting):
    """Tokens per second of real sessions, replayed."""
    clock, lookup = Clock(PROFILE), LookupSettings(GAMMA_MAX)
    policy = ChainPolicy(controller, GAMMA_MAX, lookup=lookup)
    decodes = [clock.policy(text, policy) for text in texts if text.settings.name == setting]
    return sum(one.tokens for one in decodes) / sum(one.seconds for one in decodes)


@pytest.mark.parametrize("which", [(TAKEOVER, "match"), (SOURCE, "agree")], ids=str)
def test_what_is_promised_is_what_real_sessions_do(materials, fitted, which):
    made = fitted[which]
    texts = list(TextTable.read(materials[which[1]].texts).rows("test").texts())
    served = CONTROLLERS[which[0]].from_bundle(Bundle(made.card, made.tensors))
    for setting, part in made.quality["parts"].items():
        promised = part["policies"][which[0]]["tokens_per_second"]
        assert part["pays"][which[0]] and promised == pytest.approx(rate_of(served, texts, setting))
        assert promised != pytest.approx(rate_of(served.otherwise, texts, setting)), "chains alone would be seen"
        assert part["policies"][which[0]]["gain"]["low"] > 0.1


def test_the_match_that_tells_is_found(fitted):
    made = fitted[TAKEOVER, "match"]
    for setting, part in zip(made.card["settings"], made.quality["parts"].values(), strict=True):
        assert (setting["rule"]["match"], setting["rule"]["length"]) == (LONG, GAMMA_MAX)
        assert part["over"]["takeover over survival"]["low"] > 0.05


def test_what_no_match_tells_is_learned(fitted):
    """How sure a lookup is, from how its context went on; a rule of matches cannot know."""
    made = fitted[SOURCE, "agree"]
    controller = CONTROLLERS[SOURCE].from_bundle(Bundle(made.card, made.tensors))
    for setting in controller.settings:
        for agreed, chance in ((4, GOOD), (1, BAD)):
            survival_L = setting.rule.survival(Seen(5, GAMMA_MAX, 4, agreed, 0.0, 0.7))
            assert survival_L[0] == pytest.approx(chance, abs=0.06)
            assert np.abs(survival_L - chance ** np.arange(1, GAMMA_MAX + 1)).max() < 0.1
        inner = controller.otherwise.setting(setting.settings)
        good, bad = (
            setting.rule.chosen(Seen(5, GAMMA_MAX, 4, agreed, 0.0, 0.7), inner.rule.rate, inner.costs)
            for agreed in (4, 1)
        )
        assert good.takes and good.tokens == GAMMA_MAX and not bad.takes
    over = {name: part["over"]["source over takeover"] for name, part in made.quality["parts"].items()}
    assert all(gain["value"] > 0.03 for gain in over.values()), over


def test_lookups_that_are_never_right_are_left_alone(fitted):
    for part in fitted[SOURCE, "none"].quality["parts"].values():
        alone, made = (part["policies"][name]["tokens_per_second"] for name in ("survival", SOURCE))
        assert made > 0.97 * alone
        assert part["over"]["takeover over survival"]["value"] < 0.03


def lookups(right, found):
    """Of one text: how many tokens of each lookup are the text's, and how many were found."""
    starts = SimpleNamespace(left_XS=np.full((1, len(found)), 5))
    found_XS, many_XS = np.array([found]), np.array([range(1, 1 + len(found))])
    known = {"known": (many_XS, found_XS, many_XS, many_XS), "tokens_XSL": np.zeros((1, len(found), 2))}
    return SimpleNamespace(starts=starts, found_XS=found_XS, right_XS=np.array([right]), **known)


def test_lookups_that_are_never_or_always_right_are_learned_from_and_none_at_all_are_refused():
    def chance(right):  # at an average token
        return float(np.sum(hazard_of(lookups(right, (2, 2, 1)))))

    never, always = chance((0, 0, 0)), chance((2, 2, 1))
    assert never < 0 < always and np.isfinite([never, always]).all()
    with pytest.raises(ValueError, match="lookups propose no token .* Raise prompts.train"):
        hazard_of(lookups((0, 0), (0, 0)))


def test_where_validation_texts_have_no_lookup_roots_are_trusted_by_their_training(fitted):
    made = fitted[SOURCE, "agree"]
    controller = CONTROLLERS[SOURCE].from_bundle(Bundle(made.card, made.tensors))
    for setting in controller.settings:
        inner = controller.otherwise.setting(setting.settings)
        nothing = Seen(*(np.array([], one) for one in (int, int, int, int, float, float)))
        far = setting.rule.chosen(nothing, inner.rule.rate, inner.costs).far
        assert far.shape == (0,) and CONFIG.survival.largest(far) == CONFIG.survival.distance_margin


def test_the_card_holds_the_other_controller(fitted):
    made = fitted[SOURCE, "agree"]
    inner = Bundle(made.card, made.tensors).otherwise
    assert OTHERWISE in made.card and type(Survival.from_bundle(inner)) is Survival
    assert made.card["decoder"]["drafter"]["lookup"] == {"length": GAMMA_MAX}
    assert made.card["measured_quality"]["tokens"] == inner.card["measured_quality"]["tokens"]
