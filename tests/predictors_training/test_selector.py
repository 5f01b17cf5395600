"""The selector's objective, labels, training and evaluation: by hand, against finite differences, on planted signals."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from predictors.latency import LatencyProfile, LatencyTable
from predictors.latency.actions import Traffic, step_seconds, undisturbed
from predictors.selection.network import ServedSelector
from predictors.selection.rule import NEVER, SURPLUS, SelectionRule
from predictors.training.root_table import RootTable
from predictors.training.rule_calibration import RuleCalibration
from predictors.training.selector_evaluation import (
    at_places,
    calibrated_rule,
    chosen,
    evaluate_selector,
    oracle_places,
    rates_by_setting,
    served,
    split_oracle,
)
from predictors.training.selector_fit import SelectorConfig, fit_selector
from predictors.training.selector_objective import SCORED, THROUGHPUT, TOKENS, log_gain, objective, token_error
from predictors.training.selector_rows import Labelling
from tests.predictors.affine_profile import PROFILE
from tests.predictors_training.synthetic_roots import ACTIONS, FED, NODES, write_roots

FLAT = np.array([0.5, 0.5])
SPECINFER = LatencyTable({"drafted": (0, 16)}, FLAT, FLAT, FLAT, 1)
TOY = LatencyProfile({**PROFILE.tables, "verification_specinfer": SPECINFER}, "toy", {}, {})
CONFIG = SelectorConfig(width=8, hidden_sizes=(32, 16), dropout=0.0, learning_rate=3e-3, epochs=30, batch_size=64)
CALIBRATION = RuleCalibration(bootstrap_replicates=200)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return RootTable.read(write_roots(tmp_path_factory.mktemp("roots") / "r"))


@pytest.fixture(scope="module")
def labelling(table):
    return Labelling.of(table, "specinfer", TOY, states=True)


@pytest.fixture(scope="module")
def parts(table, labelling):
    return {split: labelling.rows(table.rows(split)) for split in ("train", "validation", "test")}


@pytest.fixture(scope="module")
def trained(labelling, parts):
    return fit_selector(labelling, parts["train"], parts["validation"], TOKENS, CONFIG)


# ---- objective


def test_the_gain_by_hand():
    """π = (1/4, 3/4), E = (2, 4), T = (1, 3): 3.5 tokens in 2.5 seconds against 2 tokens a second."""
    logits = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)
    efficiency, seconds = torch.tensor([[2.0, 4.0]]), torch.tensor([[1.0, 3.0]])
    gain = log_gain(logits, efficiency, seconds, torch.tensor([0]))
    assert float(gain) == pytest.approx(math.log(3.5 / 2.5 / 2.0))


def test_the_loss_by_hand():
    """Gains of .3, -.1, -.2 and 0: the worst half is .2 and .1, whatever their order."""
    for order in ([0, 1, 2, 3], [3, 2, 0, 1]):
        gains = torch.tensor([0.3, -0.1, -0.2, 0.0], dtype=torch.float64)[order]
        assert float(objective(gains, penalty=2.0, worst=0.5)) == pytest.approx(0.0 + 2 * 0.15)
        assert float(objective(gains, penalty=2.0, worst=0.3)) == pytest.approx(2 * 0.15), "a started row counts whole"
        assert float(objective(gains, penalty=0.0, worst=1.0)) == pytest.approx(0.0)


def test_the_error_of_expected_tokens_by_hand():
    """Off by one token of a mean of two, and by one of four: the mean of 1/4 and 1/16."""
    logs = torch.tensor([[2.0, 5.0]]).log()
    assert float(token_error(logs, torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, 4.0]))) == pytest.approx(5 / 32)


def test_the_gradient_against_finite_differences_and_the_formula():
    torch.manual_seed(0)
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    efficiency, seconds = 1 + 4 * torch.rand(6, 4, dtype=torch.float64), 1 + torch.rand(6, 4, dtype=torch.float64)
    static = torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.autograd.gradcheck(
        lambda given: objective(log_gain(given, efficiency, seconds, static), penalty=0.7, worst=0.4), (logits,)
    )
    (gradient,) = torch.autograd.grad(log_gain(logits, efficiency, seconds, static).sum(), logits)
    policy = logits.softmax(1)
    means = [(policy * amounts).sum(1, keepdim=True) for amounts in (efficiency, seconds)]
    torch.testing.assert_close(gradient, policy * (efficiency / means[0] - seconds / means[1]))


# ---- labels


def test_labels_are_means_over_draws_and_prices_of_the_training_nodes(table, labelling, parts):
    train = table.rows("train")
    assert labelling.actions == ACTIONS and labelling.columns == (0, 1, 2)
    assert labelling.traffic == tuple(Traffic(*made) for made in zip(NODES, FED, strict=True))
    np.testing.assert_allclose(parts["train"].efficiency_NA, train.efficiency_NDKA[:, :, 0].mean(1))
    width = labelling.spec.state_size + labelling.spec.num_scalars
    at, low, high = 100, *(labelling.prices.contexts)
    quiet = undisturbed(TOY)
    ends = [step_seconds(quiet, "specinfer", ACTIONS[2], labelling.traffic[2], place) for place in (low, high)]
    share = (at - low) / (high - low)
    assert labelling.prices.at(at)[2] == pytest.approx((1 - share) * ends[0] + share * ends[1])
    assert parts["train"].features.shape == (len(train), width)


def test_the_static_action_is_the_training_roots_best_of_each_setting(table, labelling, parts):
    for number, static in enumerate(labelling.statics()):
        rows = parts["train"]
        mask = rows.table.setting_N == number
        seconds = labelling.prices.at(labelling.settings[number].context)
        rates = rows.efficiency_NA[mask].mean(0) / seconds
        assert (static.place, static.rate) == (rates.argmax(), pytest.approx(rates.max()))
    assert set(zip(parts["test"].static_N, parts["test"].rate_N, strict=True)) == {
        (static.place, static.rate) for static in labelling.statics()
    }


def test_a_rule_for_chains_chooses_among_chains(table):
    labelling = Labelling.of(table, "block", TOY, states=False)
    assert labelling.actions == ACTIONS[:2]
    rows = labelling.rows(table.rows("test"))
    assert rows.efficiency_NDA.shape[2] == 2
    assert rows.features.shape[1] == labelling.spec.num_scalars == 9, "without states the scalars are all it reads"
    with pytest.raises(ValueError, match="no labels for rule 'nss', only for specinfer, block"):
        Labelling.of(table, "nss", TOY, states=True)


# ---- training


def test_training_finds_a_planted_signal(labelling, parts, trained):
    served_selector = ServedSelector(trained.network, torch.device("cpu"))
    rule, validation_gain = calibrated_rule(
        served_selector, labelling, parts["validation"], SCORED[TOKENS], CALIBRATION
    )
    assert validation_gain > 0.02
    record = evaluate_selector(served_selector, labelling, rule, parts["test"], CALIBRATION)
    part = record["parts"]["all"]
    assert part["selector"]["gain"]["low"] > 0.02
    assert part["gap_closed"]["value"] > 0.6
    assert part["selector"]["tokens_per_second"]["value"] > part["static"]["tokens_per_second"]["value"]
    assert record["trusted"] > 0.9
    assert set(record["parts"]) == {"all", "T=0.6", "T=1"}
    for setting, rates in rates_by_setting(served_selector, parts["test"], rule).items():
        for name, rate in rates.items():
            assert rate == pytest.approx(record["parts"][setting][name]["tokens_per_second"]["value"])
    shares = [sum(uses.values()) for uses in record["uses"].values()]
    assert set(record["uses"]) == {"code", "prose"} and shares == pytest.approx([1.0, 1.0])


def test_training_is_reproducible(labelling, parts, trained):
    short = dataclasses.replace(CONFIG, epochs=2)
    first, second = (fit_selector(labelling, parts["train"], parts["validation"], THROUGHPUT, short) for _ in range(2))
    for one, other in zip(first.network.state_dict().values(), second.network.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert first.history == second.history
    losses = [epoch["val_loss"] for epoch in trained.history]
    assert trained.best_epoch == int(np.argmin(losses))


def test_the_monitored_loss_is_the_hard_gain(labelling, parts, trained):
    rows = parts["validation"]
    tokens, distance = served(ServedSelector(trained.network, torch.device("cpu")), rows)
    free = dataclasses.replace(rows, decision=0.0)  # what deciding costs is the rule's to weigh
    hard = chosen(free, tokens, distance, SelectionRule(SURPLUS, 1.0, 0.0, 1e9, ())).throughput
    static = at_places(rows, rows.static_N, 0.0).throughput
    assert trained.history[trained.best_epoch]["val_loss"] == pytest.approx(-math.log(hard / static), abs=1e-4)


def test_an_untrained_selector_chooses_statically(labelling, parts):
    """With no step taken, expected tokens are the training means: at equal contexts that is the static choice."""
    idle = dataclasses.replace(CONFIG, learning_rate=1e-12, epochs=1)
    network = fit_selector(labelling, parts["train"], parts["validation"], TOKENS, idle).network
    logs = network(parts["test"].features)
    expected = torch.from_numpy(np.log(parts["train"].efficiency_NA.mean(0))).float()
    assert torch.allclose(logs, expected.expand_as(logs), atol=1e-4)


# ---- evaluation


def test_where_there_is_nothing_to_win_the_rule_stays_static(tmp_path):
    """Noise alone: the selector's margin forbids every choice, or the gain is nothing; the split oracle sees no gap."""
    table = RootTable.read(write_roots(tmp_path / "r", signal=0.0, noise=0.5))
    labelling = Labelling.of(table, "specinfer", TOY, states=True)
    rows = labelling.rows(table.rows("test"))
    static = at_places(rows, rows.static_N, 0.0).throughput
    assert at_places(rows, oracle_places(rows.efficiency_NA, rows.seconds_NA), 0.0).throughput > 1.03 * static, (
        "biased upwards"
    )
    assert split_oracle(rows).throughput < 1.01 * static
    random = np.random.default_rng(0).normal(size=rows.efficiency_NA.shape)
    never = chosen(rows, random, np.zeros(len(rows)), SelectionRule(SURPLUS, 1.0, NEVER, 1e9, ()))
    assert never.places.tolist() == rows.static_N.tolist() and never.throughput == static, (
        "nothing is asked, nothing paid"
    )


def test_a_gain_that_is_not_sure_on_validation_roots_is_not_asked_for(labelling, parts, trained):
    """The planted signal is; the same network on roots whose labels were shuffled among themselves is not."""
    selector, rows = ServedSelector(trained.network, torch.device("cpu")), parts["validation"]
    rule, gain = calibrated_rule(selector, labelling, rows, SCORED[TOKENS], CALIBRATION)
    assert rule.asks and gain > 0
    order = np.random.default_rng(2).permutation(len(rows))
    shuffled = dataclasses.replace(rows, efficiency_NDA=rows.efficiency_NDA[order])
    rule, gain = calibrated_rule(selector, labelling, shuffled, SCORED[TOKENS], CALIBRATION)
    assert not rule.asks and gain == 0.0


def test_the_oracle_maximises_the_ratio_of_sums():
    """Against every assignment of two actions to four roots."""
    random = np.random.default_rng(1)
    efficiency, seconds = 1 + 4 * random.random((4, 2)), 1 + 2 * random.random((4, 2))
    best = max(
        sum(efficiency[root, choice >> root & 1] for root in range(4))
        / sum(seconds[root, choice >> root & 1] for root in range(4))
        for choice in range(16)
    )
    places = oracle_places(efficiency, seconds)
    assert np.take_along_axis(efficiency, places[:, None], 1).sum() / np.take_along_axis(
        seconds, places[:, None], 1
    ).sum() == pytest.approx(best)


def test_no_oracle_is_below_static_whatever_choosing_costs(labelling, parts, trained):
    """At a senseless price of choosing, the bounds of a perfect choice meet at static; chosen regardless of it they did not."""
    selector = ServedSelector(trained.network, torch.device("cpu"))
    rule = SelectionRule(SURPLUS, 1.0, NEVER, 1e9, labelling.settings)
    for decision in (0.0, parts["test"].decision, 1e3):
        rows = dataclasses.replace(parts["test"], decision=decision)
        record = evaluate_selector(selector, labelling, rule, rows, CALIBRATION)
        for part in record["parts"].values():
            least, most = part["oracle"]["gain"]["value"], part["oracle_same_draws"]["gain"]["value"]
            assert least >= 0 and most >= -1e-12
    assert least == 0 and most == 0
    assert split_oracle(rows).throughput < at_places(rows, rows.static_N, 0.0).throughput


def test_one_draw_has_no_split_oracle(tmp_path):
    table = RootTable.read(write_roots(tmp_path / "r", draws=1))
    labelling = Labelling.of(table, "specinfer", TOY, states=True)
    assert split_oracle(labelling.rows(table.rows("test"))) is None


def test_margins_hold_choices_back(parts):
    rows = parts["test"]
    worth_nothing = rows.rate_N[:, None] * rows.seconds_NA
    worth_nothing[:, 0] += 0.04
    near, far = np.zeros(len(rows)), np.full(len(rows), 2.0)
    assert set(chosen(rows, worth_nothing, near, SelectionRule(SURPLUS, 1.0, 0.0, 1.0, ())).places) == {0}
    held = chosen(rows, worth_nothing, near, SelectionRule(SURPLUS, 1.0, 0.05, 1.0, ()))
    assert held.places.tolist() == rows.static_N.tolist()
    assert held.seconds.sum() == pytest.approx(at_places(rows, rows.static_N, rows.decision).seconds.sum())
    untrusted = chosen(rows, worth_nothing, far, SelectionRule(SURPLUS, 1.0, 0.0, 1.0, ()))
    assert untrusted.places.tolist() == rows.static_N.tolist()


def test_choices_are_scored_with_the_roots_own_nodes(table, labelling, parts):
    """Every synthetic root has the mean's nodes but for one, whose tree of the third action has two nodes more."""
    rows = parts["test"]
    np.testing.assert_allclose(rows.spent_NA, rows.seconds_NA)
    place = labelling.columns.index(2)
    test = table.rows("test")
    test.__dict__["nodes_NA"] = test.nodes_NA + np.array([[0, 0, 2.0]] + [[0, 0, 0.0]] * (len(test) - 1))
    changed = labelling.rows(test)
    more = labelling.node_seconds[place] * 2
    assert more == pytest.approx(2 * (0.5 + 1.0) / 2), (
        "two tokens more to verify in the pass, and to draw; fast quartiles"
    )
    assert changed.spent_NA[0, place] - changed.seconds_NA[0, place] == pytest.approx(more)
    np.testing.assert_allclose(changed.spent_NA[1:], changed.seconds_NA[1:])
