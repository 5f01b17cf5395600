"""Stop models: training and calibration on tokens whose chances are known, replay against the served session, choice of rules."""

import itertools
import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipelines.cli import main
from predictors.bundle import read_bundle
from predictors.controllers import EarlyStop
from predictors.controllers.early_stop import StopSession
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root
from predictors.stopping.network import RESIDUAL, NetworkShape
from predictors.stopping.rule import StopRule, StopSetting
from predictors.training import stop_fit
from predictors.training.rule_calibration import RuleCalibration
from predictors.training.stop_evaluation import StopStudy, choose, evaluate
from predictors.training.stop_fit import StopTrainConfig, StopTraining, fit_platt, fit_stop_model
from predictors.training.stop_replay import StopCosts, StopReplay, stop_costs
from predictors.training.token_table import Rounds, TokenTable
from tests.predictors.affine_profile import COSTS, PROFILE
from tests.predictors_training.synthetic_tokens import GAMMA, SPEC, write_tokens

MODELS = {
    "early_stop-1": StopTrainConfig(network=NetworkShape(hidden_sizes=(16, 8)), epochs=8),
    "early_stop-2": StopTrainConfig(inputs="law", network=NetworkShape(hidden_sizes=(8,)), labels="hard", epochs=8),
    "specdecpp": StopTrainConfig(
        kind="specdecpp",
        inputs="behind",
        network=NetworkShape(RESIDUAL, depth=2),
        mismatch_weight=6.0,
        epochs=30,
        batch_size=64,
    ),
    "logistic": StopTrainConfig(kind="logistic", inputs="law", labels="hard", epochs=8),
}
CALIBRATION = RuleCalibration(bootstrap_replicates=200)
COST = StopCosts(np.tile(1.0 + 0.2 * np.arange(GAMMA + 1), (2, 1)), draft_S=np.array([0.15, 0.15]), question=0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens") / "t")


@pytest.fixture(scope="module")
def splits(folder):
    table = TokenTable.read(folder)
    return [table.rows(split) for split in ("train", "validation", "test")]


def studies(splits, config, model):
    return [StopStudy(part, model, config, COST) for part in splits]


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_knows_what_its_inputs_tell(splits, name):
    config = MODELS[name]
    model = fit_stop_model(*splits[:2], config)
    train, validation, test = studies(splits, config, model)
    measured = evaluate(test, choose(train, validation, CALIBRATION), CALIBRATION)
    quality = measured["tokens"]["all"]
    assert quality["auroc"] > (0.72 if config.inputs == "law" else 0.8), quality
    assert quality["ece"] < 0.06, "whatever rejected tokens counted in training"
    predicted, observed = (np.array(measured["product_bias"][part]) for part in ("predicted", "observed"))
    assert np.abs(predicted - observed).max() < 0.05
    again = fit_stop_model(*splits[:2], config)
    assert all(torch.equal(a, b) for a, b in zip(model.network.parameters(), again.network.parameters(), strict=True))


def test_a_model_that_knows_gains_and_one_that_does_not_is_not_asked(splits, tmp_path):
    config = MODELS["early_stop-1"]
    train, validation, test = studies(splits, config, fit_stop_model(*splits[:2], config))
    chosen = choose(train, validation, CALIBRATION)
    assert all(made.rule.asks for made in chosen.settings) and chosen.validation_gain > 0.03
    for part in evaluate(test, chosen, CALIBRATION)["parts"].values():
        policies = part["policies"]
        assert policies["model"]["gain"]["low"] > 0
        assert policies["perfect"]["tokens_per_second"] > max(
            policies[name]["tokens_per_second"] for name in ("static", "confidence", "paper", "model")
        )
    blind = TokenTable.read(write_tokens(tmp_path / "blind", informative=False))
    parts = [blind.rows(split) for split in ("train", "validation", "test")]
    train, validation, test = studies(parts, config, fit_stop_model(*parts[:2], config))
    chosen = choose(train, validation, CALIBRATION)
    assert not any(made.rule.asks for made in chosen.settings) and chosen.validation_gain == 0
    for part in evaluate(test, chosen, CALIBRATION)["parts"].values():
        assert part["policies"]["model"]["tokens_per_second"] == part["policies"]["static"]["tokens_per_second"]


def test_mismatches_weigh_in_soft_labels_too():
    """At weight w the loss of a label y is least at y / (y + w (1 - y))."""
    config = StopTrainConfig(mismatch_weight=6.0)
    logits = torch.linspace(-5, 5, 1001)
    for label in (0.2, 0.5, 0.9):
        training = StopTraining(SimpleNamespace(), config)
        losses = []
        for logit in logits:
            training.head = lambda features, logit=logit: logit.reshape(1)
            losses.append(float(training._loss((torch.zeros(1, 1), torch.tensor([label])))))
        best = float(torch.sigmoid(logits[int(np.argmin(losses))]))
        assert best == pytest.approx(label / (label + 6 * (1 - label)), abs=0.005)


def test_platt_scaling_recovers_scale_and_bias():
    random = np.random.default_rng(0)
    logits = random.normal(scale=2, size=40_000)
    accepted = random.random(40_000) < 1 / (1 + np.exp(-(0.7 * logits - 0.4)))
    fitted = fit_platt(logits, accepted)
    assert (fitted.scale, fitted.bias) == pytest.approx((0.7, -0.4), abs=0.03)
    assert fit_platt(-logits, accepted).scale > 0, "never turned around"
    with pytest.raises(ValueError, match="has one fate"):
        fit_platt(logits, np.ones(40_000, dtype=bool))


def rounds_of(accepted, setting=0):
    """Rounds drafted to GAMMA, with so many accepted."""
    count = len(accepted)
    rows = np.arange(count * GAMMA).reshape(count, GAMMA)
    return Rounds(rows, np.array(accepted), np.arange(count), np.full(count, setting), np.full(count, 9))


def test_outcomes_by_hand():
    """Two rounds, of which 1 and 6 tokens are accepted; a model that says .9, .3, then .9 at every further place."""
    replay, chances = StopReplay(rounds_of([1, 6]), COST), np.tile([0.9, 0.3, 0.9, 0.9, 0.9, 0.9], (2, 1))
    static = replay.static(2)
    assert static.tokens.tolist() == [2, 3] and static.seconds == pytest.approx([1.4, 1.4])
    dropped = replay.stopped(chances, StopRule(0.5), "before")  # stops at the second law, which has cost a pass
    assert dropped.submitted.tolist() == [1, 1] and dropped.seconds == pytest.approx([1.2 + 0.15 + 0.01] * 2)
    kept = replay.stopped(chances, StopRule(0.5, keeps=True), "before")
    assert kept.submitted.tolist() == [2, 2] and kept.seconds == pytest.approx([1.4 + 0.01] * 2)
    seen = replay.stopped(
        chances, StopRule(0.5, keeps=True), "behind"
    )  # of the second token, once the third law is there
    assert seen.submitted.tolist() == [3, 3] and seen.seconds == pytest.approx([1.6 + 0.02] * 2)
    product = replay.stopped(np.full((2, 6), 0.8), StopRule(0.5, product=True), "law")  # .8, .64, .512, .41
    assert product.submitted.tolist() == [3, 3] and product.seconds == pytest.approx([1.6 + 0.15 + 0.04] * 2)
    assert replay.stopped(chances, StopRule(0.0), "before").seconds == pytest.approx([2.2, 2.2]), "nothing is asked"
    confident = replay.confidence(chances, 0.5)
    assert confident.submitted.tolist() == [1, 1] and confident.seconds == pytest.approx([1.2 + 0.15] * 2)
    assert replay.perfect().submitted.tolist() == [1, 6]


def test_no_static_length_beats_the_perfect_rule_whatever_rounds_cost():
    random = np.random.default_rng(0)
    for _ in range(20):
        costs = StopCosts(random.exponential(size=(1, GAMMA + 1)) + 1e-3, COST.draft_S, COST.question)
        replay = StopReplay(rounds_of(random.integers(0, GAMMA + 1, 50)), costs)
        best = max(replay.static(length).throughput for length in range(GAMMA + 1))
        assert replay.perfect().throughput >= best * (1 - 1e-12)


@pytest.mark.parametrize("inputs", ["law", "before", "behind"])
def test_replay_submits_what_a_served_session_does(inputs):
    """For random chances and every kind of rule, step by step through the hooks that a chain asks."""
    random = np.random.default_rng(1)
    chances = random.random((40, GAMMA))
    replay = StopReplay(rounds_of([3] * 40), COST)
    for threshold, product, keeps, least in itertools.product((0.3, 0.6), (False, True), (False, True), (0, 1, 2)):
        rule = StopRule(threshold, product, keeps, least)
        outcome = replay.stopped(chances, rule, inputs)
        served = [_served(row, rule, inputs) for row in chances]
        assert outcome.submitted.tolist() == [submitted for submitted, *_ in served], rule
        spent = COST.rounds_SM[0, outcome.submitted] + [0.15 * (passes - submitted) for submitted, passes, _ in served]
        asked = [questions for *_, questions in served]
        assert outcome.seconds == pytest.approx(spent + 0.01 * np.array(asked))


def _served(chances, rule, inputs):
    """Submitted tokens, passes and questions of a chain of GAMMA tokens under a session that is told ``chances``."""
    questions = []
    controller = SimpleNamespace(
        inputs=inputs,
        setting=lambda settings: StopSetting(settings, rule, 2, rule),
        guard=SimpleNamespace(covers=lambda _: True, reaches=lambda _: True, trusts=lambda finite, *_: finite and True),
        predict=lambda laws: (
            questions.append(laws),
            ([float(chances[laws[0].drafted - (inputs == "behind")])], 0.0, ()),
        )[1],
        max_distance=1e9,
    )
    settings = SamplingSettings(1.0)
    session, root = StopSession(controller, settings), Root(10, GAMMA, settings, None)
    assert session.plan(root) is None
    law_V = torch.tensor([0.5, 0.5])
    for drafted in range(GAMMA):
        law = NextLaw(root, settings, drafted, law_V.log(), law_V)
        if session.stop_before(law):
            return drafted, drafted + 1, len(questions)
        if session.stop_after(DrawnToken(law, torch.tensor(0))):
            return drafted + 1, drafted + 1, len(questions)
    session.end_round(RoundRecord(drafted=GAMMA, accepted=3))
    return GAMMA, GAMMA, len(questions)


def test_costs_are_the_profiles():
    costs = stop_costs(PROFILE, [SamplingSettings(0.0), SamplingSettings(1.0)], 3, 40.0, 16)
    draft, target = COSTS["draft"], COSTS["target"]
    for number, sampled in enumerate((0, 1)):
        for length in range(4):
            whole = target(1 + length, 40) + sum(draft(1, 40 + place) for place in range(length))
            whole += COSTS["chain_verification"](length, sampled) + COSTS["chain_drawing"](length, sampled)
            assert costs.rounds_SM[number, length] == pytest.approx(whole / 2, rel=1e-6), "fast quartiles"
        law = draft(1, 40) + COSTS["chain_drawing"](1, sampled)
        assert costs.draft_S[number] == pytest.approx(law / 2)
    assert costs.question == pytest.approx(COSTS["stopping"](16) / 2)


def test_tokens_lie_in_their_rounds(splits):
    test = splits[2]
    rounds = test.rounds
    assert (rounds.drafted_R == GAMMA).all() and rounds.rows_RG.ravel().tolist() == [*range(len(test))]
    accepted = test.column("accepted").reshape(-1, GAMMA).sum(axis=1)
    assert rounds.accepted_R.tolist() == accepted.tolist()
    assert set(rounds.setting_R.tolist()) == {0, 1}
    cut = TokenTable(test.manifest, test.table.slice(0, 2 * GAMMA - 2)).rounds
    assert cut.drafted_R.tolist() == [GAMMA, GAMMA - 2]
    assert cut.spread(np.arange(2 * GAMMA - 2.0), -1)[1].tolist() == [*range(GAMMA, 2 * GAMMA - 2), -1, -1]


def test_the_stage_writes_a_bundle_that_serves_what_was_trained(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "device.json").write_text(json.dumps({"slug": "toy"}))
    (tmp_path / "latency").mkdir()
    (tmp_path / "latency/toy.json").write_text(json.dumps(PROFILE.to_record()))
    parameters = """
pairs:
  p:
    stopper:
      train:
        one: {kind: early_stop, inputs: before, network: {hidden_sizes: [16, 8]}, epochs: 4}
      calibrate: {bootstrap_replicates: 100}
"""
    (tmp_path / "params.yaml").write_text(parameters)
    record, bundle = tmp_path / "one.json", tmp_path / "bundles/one"
    places = ["--device", str(tmp_path / "device.json"), "--latency", str(tmp_path / "latency")]
    names = ["--pair", "p", "--predictor", "one", "--params", str(tmp_path / "params.yaml")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(["stopper", *names, str(folder), str(record), str(bundle), *places])
    written, controller = json.loads(record.read_text()), EarlyStop.from_bundle(read_bundle(bundle))
    assert written["tokens"]["all"]["auroc"] > 0.7 and set(written["parts"]) == {"T=0", "T=1"}
    assert controller.spec == SPEC and len(controller.settings) == 2
    features = TokenTable.read(folder).rows("test").features("before")[:50]
    chances = controller.outputs(features)[:, 0].detach()
    assert ((chances > 0) & (chances < 1)).all() and float(chances.std()) > 0.1
    assert "exported without text traces" in read_bundle(bundle).card["reference"]["missing"]
    assert read_bundle(bundle).card["serving"] == PROFILE.serving.to_record()
    monkeypatch.setattr(stop_fit, "fit_stop_model", None)
    with pytest.raises(SystemExit, match="nowhere.* is missing: collection did not finish"):
        main(
            [
                "stopper",
                *names,
                str(folder),
                str(record),
                str(bundle),
                *places,
                "--texts",
                str(tmp_path / "nowhere"),
            ]
        )
    with pytest.raises(SystemExit, match="section 'two' is missing. Sections there: one"):
        names[3] = "two"
        main(["stopper", *names, str(folder), str(record), str(bundle), *places])
