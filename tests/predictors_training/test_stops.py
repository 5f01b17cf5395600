"""Stop models fitted on texts whose chances are known: what they learn, how they are calibrated, which rules are served."""

from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from predictors.bundle import Bundle
from predictors.controllers.early_stop import EarlyStop
from predictors.replay.acceptance import BeyondRecordError, reached
from predictors.replay.chains import ChainPolicy
from predictors.replay.decode import Clock
from predictors.stopping import RESIDUAL, NetworkShape, RisingCalibration
from predictors.training import stop_predictor as rules
from predictors.training.calibration import product_calibration
from predictors.training.labelling import TOKENS, LabelConfig, label_tokens, write_labels
from predictors.training.predictor import Materials
from predictors.training.stop_model import (
    HARD,
    SlotFeatures,
    StopModel,
    TokenRows,
    WholeDrafts,
    fit_calibration,
    log_loss,
    quality,
)
from predictors.training.stop_predictor import StopPredictor
from predictors.training.tables import TextTable
from tests.predictors.affine_profile import toy_profile
from tests.predictors_training.synthetic_drafts import drafted_texts
from tests.predictors_training.synthetic_texts import GAMMA_MAX, SPEC, write_texts

PROFILE = toy_profile(draft=lambda rows, context: 2 + rows / 4 + context / 64, stopping=lambda features: 0.125)
SMALL = {"gamma": GAMMA_MAX, "epochs": 8, "batch_size": 64, "folds": 3}
MODELS = {
    "early_stop-1": StopPredictor(network=NetworkShape(hidden_sizes=(16, 8)), **SMALL),
    "early_stop-2": StopPredictor(inputs="law", network=NetworkShape(hidden_sizes=(8,)), labels="hard", **SMALL),
    "specdecpp": StopPredictor(
        kind="specdecpp", inputs="behind", network=NetworkShape(RESIDUAL, depth=2), mismatch_weight=6.0, **SMALL
    ),
    "logistic": StopPredictor(kind="logistic", inputs="law", labels="hard", **SMALL),
}


def materials_in(folder: Path, **options) -> Materials:
    """Synthetic texts and their labels."""
    texts, labels = write_texts(folder / "texts", drafted_texts(**options)), folder / "labels"
    labels.mkdir()
    write_labels(label_tokens(TextTable.read(texts), LabelConfig()), labels / f"{TOKENS}.parquet")
    return Materials(texts, folder, folder, labels, PROFILE)


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    return materials_in(tmp_path_factory.mktemp("materials"))


@pytest.fixture(scope="module", autouse=True)
def few_rules():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "RULES", rules.RULES[::9])
        yield


@pytest.fixture(scope="module")
def table(materials):
    return TextTable.read(materials.texts)


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_knows_what_its_inputs_tell(table, name):
    config, labels = replace(MODELS[name], calibrated_tokens=GAMMA_MAX), label_tokens(table, LabelConfig())
    model = StopModel(table, labels, config)
    features = model.features["test"]
    drafts = WholeDrafts.of(features, GAMMA_MAX - features.sees)
    measured = quality(model.tokens["test"], drafts, partial(model.chances, "test"))
    known = measured["tokens"]["all"]
    assert known["auroc"] > (0.7 if config.inputs == "law" else 0.8), known
    assert known["ece"] < 0.06, "whatever rejected tokens counted in training"
    predicted, observed = (np.array(measured["product_bias"][part]) for part in ("predicted", "observed"))
    assert np.abs(predicted - observed).max() < 0.05 and len(observed) == GAMMA_MAX - features.sees


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_texts_too_short_for_a_whole_draft_promise_nothing(table):
    config = replace(MODELS["early_stop-1"], calibrated_tokens=3)
    model = StopModel(table, label_tokens(table, LabelConfig()), config)
    drafts = WholeDrafts.of(model.features["test"], GAMMA_MAX)
    short = drafts.take(~drafts.whole_NG.all(axis=1))
    measured = quality(model.tokens["test"], short, partial(model.chances, "test"))
    assert len(short.accepted_N) and measured["product_bias"] == {"predicted": [], "observed": []}


@pytest.mark.parametrize("name", ["early_stop-1", "specdecpp"])
def test_what_is_promised_is_what_real_controllers_do(materials, table, name):
    """Σ tokens / Σ seconds of the bundle's own sessions on test texts, served and forced."""
    config = MODELS[name]
    fitted = config.fit(name, materials)
    if config.kind == "early_stop":
        assert config.fit(name, materials).card == fitted.card, "not the same for the same files"
    controller = EarlyStop.from_bundle(Bundle(fitted.card | {"kind": "early_stop"}, fitted.tensors))
    assert controller.spec == SPEC and len(controller.settings) == 2 and controller.horizon is None
    clock, texts = Clock(PROFILE), list(table.rows("test").texts())
    for setting, part in fitted.quality["parts"].items():
        of_setting = [text for text in texts if text.settings.name == setting]
        for policy, served in (("model", controller), ("asked", controller.asked_anyway())):
            decodes = [clock.policy(text, ChainPolicy(served, config.gamma)) for text in of_setting]
            speed = sum(one.tokens for one in decodes) / sum(one.seconds for one in decodes)
            assert part["policies"][policy]["tokens_per_second"] == pytest.approx(speed), (setting, policy)
            assert part["policies"]["perfect"]["tokens_per_second"] > speed
    assert fitted.metrics["test_auroc"] == fitted.quality["tokens"]["all"]["auroc"]


def test_a_model_that_knows_gains_and_one_that_does_not_is_not_asked(materials, tmp_path):
    config = MODELS["early_stop-1"]
    known = config.fit("one", materials)
    assert all(made["rule"]["threshold"] > 0 for made in known.quality["settings"])
    assert known.quality["validation_gain"] > 0.01
    for part in known.quality["parts"].values():
        assert part["policies"]["model"]["gain"]["low"] > 0
        assert part["policies"]["asked for nothing"]["gain"]["value"] > part["policies"]["asked"]["gain"]["value"]
    blind = config.fit("one", materials_in(tmp_path, informative=False))
    assert not any(made["rule"]["threshold"] for made in blind.quality["settings"])
    assert blind.quality["validation_gain"] == 0 and blind.card["decoder"]["verifier"] == "block"
    for part in blind.quality["parts"].values():
        assert part["policies"]["model"]["tokens_per_second"] == part["policies"]["static"]["tokens_per_second"]


def test_rules_are_chosen_for_the_verifier_that_was_recorded(materials):
    """Others that accept alike are served as well."""
    config = replace(MODELS["logistic"], epochs=1)
    assert replace(config, verifier="hsd").fit("l", materials).card["decoder"]["verifier"] == "hsd"
    with pytest.raises(BeyondRecordError, match="'tokenwise' cannot be replayed on chains recorded under 'block'"):
        replace(config, verifier="tokenwise").fit("l", materials)


def test_mismatches_weigh_in_soft_labels_too():
    """At weight w the loss of a label y is least at y / (y + w (1 - y))."""
    logits = torch.linspace(-5, 5, 1001)
    for target in (0.2, 0.5, 0.9):
        batch = torch.zeros(1), torch.tensor(target)
        losses = [float(log_loss(6.0, lambda features, logit=logit: logit, batch)) for logit in logits]
        best = float(torch.sigmoid(logits[int(np.argmin(losses))]))
        assert best == pytest.approx(target / (target + 6 * (1 - target)), abs=0.005)


def test_calibration_reaches_as_far_as_was_recorded(table):
    config = replace(MODELS["specdecpp"], epochs=1)
    labels = label_tokens(table, LabelConfig())
    configs = (replace(config, calibrated_tokens=tokens) for tokens in (GAMMA_MAX + 1, GAMMA_MAX - 1))
    made, most = (StopModel(table, labels, one).calibrations for one in configs)
    assert made == most


# ---- what is read where


@pytest.mark.parametrize("inputs", ["before", "behind"])
def test_tokens_are_read_where_their_state_is(table, inputs):
    """In front of a token at its own slot, after it at the next one, where there is one."""
    labels, part = label_tokens(table, LabelConfig()), table.rows("validation")
    features = SlotFeatures(part, inputs)
    tokens = TokenRows.of(features, labels, HARD)
    rows = labels.table.filter(np.isin(labels.table.column("row"), part.index)).to_pandas()
    row_N, slot_N = np.searchsorted(part.index, rows["row"]), rows["slot"] + (inputs == "behind")
    read_N = [slot < GAMMA_MAX and features.known_NG[row, slot] for row, slot in zip(row_N, slot_N, strict=True)]
    assert (tokens.row_N.tolist(), tokens.slot_N.tolist()) == (row_N[read_N].tolist(), slot_N[read_N].tolist())
    assert (np.sum(read_N) == len(rows)) == (inputs == "before")
    assert (tokens.accepted_N == (tokens.slot_N - features.sees < part.column("accepted")[tokens.row_N])).all()
    read = features.at(tokens.row_N, tokens.slot_N)
    assert torch.equal(read, torch.from_numpy(part.slots("states")[tokens.row_N, tokens.slot_N].astype(np.float32)))


def test_states_that_were_not_recorded_of_whole_drafts_are_asked_for(tmp_path):
    table = TextTable.read(write_texts(tmp_path / "texts", drafted_texts(), state_slots=1))
    with pytest.raises(ValueError, match="none were recorded. Set traces.texts.rollout_states"):
        SlotFeatures(table, "before").at(np.array([0]), np.array([0]))
    assert SlotFeatures(table, "law").at(np.array([0]), np.array([0])).shape == (1, SPEC.top + 1)


@pytest.mark.parametrize("inputs", ["law", "behind"])
def test_drafts_survive_as_the_verifier_lets_them(table, inputs):
    """Over roots n or more tokens are accepted as often as P(N >= n | text) says, of drafts that text and budget hold whole."""
    part, depth = table.rows("train"), GAMMA_MAX - (inputs == "behind")
    drafts = WholeDrafts.of(SlotFeatures(part, inputs), depth)
    whole_N, ratio_NG = drafts.whole_NG.all(axis=1), part.column("ratio")[:, :depth]
    reached_NG = reached(ratio_NG, ratio_NG, part.manifest.verifier)[whole_N]
    survived_NG = drafts.take(whole_N).survives_NG
    deviation_G = np.sqrt((reached_NG * (1 - reached_NG)).sum(axis=0))
    assert (np.abs((survived_NG - reached_NG).sum(axis=0)) < 4 * deviation_G).all()
    assert (np.abs((survived_NG[:, 1:] - reached_NG[:, :-1]).sum(axis=0)) > 4 * deviation_G[1:]).all(), "one token off"
    assert drafts.slot_G.tolist() == [slot + (inputs == "behind") for slot in range(depth)]
    assert drafts.whole_NG[41].sum() == 4, "five rows from the end of its text, and the budget leaves one token less"


# ---- calibration


def made_drafts(logits_NG, accepted_N):
    """Drafts whose tokens lie one by one at the slots of their own row."""
    whole_NG = np.ones(logits_NG.shape, bool)
    return WholeDrafts(accepted_N, np.arange(logits_NG.shape[1]), whole_NG, whole_NG)


def halves(*arrays):
    return ((array[::2], array[1::2]) for array in arrays)


def test_calibration_recovers_scale_and_bias():
    random = np.random.default_rng(0)
    logits_NG = random.normal(scale=2, size=(20_000, 3))
    kept_NG = random.random((20_000, 3)) < 1 / (1 + np.exp(-(0.7 * logits_NG - 0.4)))
    accepted_N = np.cumprod(kept_NG, axis=1).sum(axis=1)
    parts = [(part_NG, made_drafts(part_NG, of)) for part_NG, of in zip(*halves(logits_NG, accepted_N), strict=True)]
    fitted = fit_calibration(parts)
    assert astuple(fitted) == pytest.approx((0.7, -0.4, 0.0), abs=0.05)
    whole = fit_calibration([(logits_NG, made_drafts(logits_NG, accepted_N))])
    assert asdict(fitted) == pytest.approx(asdict(whole), rel=1e-3), "splits are one sample"
    assert fit_calibration([(-logits_NG, made_drafts(logits_NG, accepted_N))]).scale > 0, "never turned around"
    with pytest.raises(ValueError, match="has one fate"):
        fit_calibration([(logits_NG, made_drafts(logits_NG, np.full(20_000, 3)))])


def test_calibration_recovers_a_rise_along_the_draft():
    random = np.random.default_rng(0)
    logits_NG = random.normal(scale=2, size=(40_000, 4))
    kept_NG = random.random((40_000, 4)) < 1 / (1 + np.exp(-(0.7 * logits_NG - 0.4 + 0.3 * np.arange(4))))
    drafts = made_drafts(logits_NG, np.cumprod(kept_NG, axis=1).sum(axis=1))
    fitted = fit_calibration([(logits_NG, drafts)])
    assert astuple(fitted) == pytest.approx((0.7, -0.4, 0.3), abs=0.05)
    logit = float(logits_NG[0, 2])
    assert fitted.after(np.arange(4), logits_NG)[0, 2] == pytest.approx(fitted.after(2, logit))
    assert fitted.after(0, logit) == fitted.probability(logit) < fitted.after(1, logit)


def test_calibration_without_position_in_the_draft_leaves_products_too_low():
    """Deliberately wrong twins: what the model misses is common to a draft, so that chances of tokens do not multiply, whether
    single tokens are calibrated or products without a rise."""
    random = np.random.default_rng(1)
    missed_N, depth = random.normal(scale=1.5, size=20_000), 4
    kept_NG = random.random((20_000, depth)) < 1 / (1 + np.exp(-missed_N - 0.5))[:, None]
    accepted_N, logits_NG = np.cumprod(kept_NG, axis=1).sum(axis=1), random.normal(scale=0.1, size=(20_000, depth))
    drafts = made_drafts(logits_NG, accepted_N)
    firsts = made_drafts(logits_NG[:, :1], np.minimum(accepted_N, 1))
    rises, single = (astuple(fit_calibration([(logits_NG, made)])) for made in (drafts, firsts))
    level = product_calibration(logits_NG, drafts.survives_NG, np.ones((20_000, depth)), rises=False)
    observed = (accepted_N[:, None] > np.arange(depth)).mean(axis=0)
    made = (RisingCalibration(*one).after(np.arange(depth), logits_NG) for one in (rises, level, single))
    risen, flat, low = (np.cumprod(chances, axis=1).mean(axis=0) - observed for chances in made)
    assert low[-1] < -0.12 and np.abs(flat).max() > 0.05 and np.abs(risen).max() < 0.01
