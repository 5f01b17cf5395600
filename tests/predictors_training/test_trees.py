"""The selector's objective, labels, training and evaluation: by hand, against finite differences, on planted signals."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from predictors.actions import Traffic
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile, LatencyTable
from predictors.training.labelling import TREES, LabelConfig, label_trees, read_labels, write_labels
from predictors.training.tables import RootTable
from predictors.training.tree_predictor import RuleCalibration, calibrated_rule, evaluate_selector, judged
from predictors.training.tree_training import (
    SCORED,
    TOKENS,
    Labelling,
    SelectorConfig,
    fit_selector,
    log_gain,
    objective,
    token_error,
)
from predictors.tree_choice import SURPLUS, SelectionRule
from tests.predictors.affine_profile import PROFILE
from tests.predictors_training.synthetic_roots import ACTIONS, FED, NODES, RULES, write_roots

FLAT = np.array([0.5, 0.5])
SPECINFER = LatencyTable({"drafted": (0, 16)}, FLAT, FLAT, FLAT, 1)
TOY = LatencyProfile({**PROFILE.tables, "verification_specinfer": SPECINFER}, "toy", {}, {})
CONFIG = SelectorConfig(width=8, hidden_sizes=(32, 16), dropout=0.0, learning_rate=3e-3, epochs=30, batch_size=64)
CALIBRATION = RuleCalibration(bootstrap_replicates=200)


def labelled(folder):
    roots = RootTable.read(folder)
    return roots.labelled(label_trees(roots, LabelConfig()))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return labelled(write_roots(tmp_path_factory.mktemp("roots") / "r"))


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


def test_labels_are_means_and_spreads_over_the_roots_own_draws(tmp_path):
    """By hand, root by root: training roots have as many draws as all of them have, and no machine is asked."""
    roots = RootTable.read(write_roots(tmp_path / "r"))
    made = label_trees(roots, LabelConfig())
    write_labels(made, tmp_path / "trees.parquet")
    table = roots.labelled(read_labels(tmp_path / "trees.parquet", TREES, roots.manifest.content_hash))
    drawn = roots.table.column("efficiency").to_pylist()
    for row in (0, 7, len(roots) - 1):
        draws = np.array(drawn[row]).reshape(2, len(RULES), len(ACTIONS))
        np.testing.assert_array_equal(table.mean_NKA[row], (draws[0] + draws[1]) / 2)
        spread = np.array(made.table.column("spread")[row].as_py()).reshape(len(RULES), len(ACTIONS))
        np.testing.assert_allclose(spread, np.abs(draws[0] - draws[1]) / np.sqrt(2), rtol=1e-6)
    counts = made.report["test"]
    assert (counts["roots"], counts["documents"], counts["draws"]) == (240, 30, 2)
    assert [counts["rules"][rule]["actions"] for rule in RULES] == [3, 2]
    assert counts["rules"]["block"]["tokens"] == pytest.approx(np.nanmean(table.rows("test").mean_NKA[:, 1]))
    with pytest.raises(ValueError, match=f"traces_sha256 is '{roots.manifest.content_hash}' where 'other' is needed"):
        read_labels(tmp_path / "trees.parquet", TREES, "other")


def test_rows_that_are_not_labelled_are_not_learned_from(tmp_path):
    """The join is by row: labels of every third root, out of order, give those roots with their own labels."""
    roots = RootTable.read(write_roots(tmp_path / "r"))
    made = label_trees(roots, LabelConfig())
    kept = np.arange(len(roots))[::-3]
    part = roots.labelled(dataclasses.replace(made, table=made.table.take(kept)))
    whole = roots.labelled(made)
    np.testing.assert_array_equal(part.index, kept)
    assert len(part) == len(kept) and part.column("root").tolist() == roots.column("root")[kept].tolist()
    np.testing.assert_array_equal(part.mean_NKA, whole.mean_NKA[kept])
    np.testing.assert_allclose(part.mean_NKA, part.efficiency_NDKA.mean(axis=1))


def test_labels_are_means_over_draws_and_prices_of_the_training_nodes(table, labelling, parts):
    train = table.rows("train")
    assert labelling.actions == ACTIONS and labelling.columns == (0, 1, 2)
    assert labelling.traffic == tuple(Traffic(*made) for made in zip(NODES, FED, strict=True))
    np.testing.assert_allclose(parts["train"].efficiency_NA, train.efficiency_NDKA[:, :, 0].mean(1))
    width = labelling.spec.state_size + labelling.spec.num_scalars
    at, low, high = 100, *(labelling.prices.contexts)
    prices = RoundPrices(TOY, sampled=True)
    ends = [prices.tree(ACTIONS[2], labelling.traffic[2], "specinfer", place) for place in (low, high)]
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
    assert rows.efficiency_NDA.shape[2] == rows.efficiency_NA.shape[1] == 2
    assert rows.features.shape[1] == labelling.spec.num_scalars == 9, "without states the scalars are all it reads"
    with pytest.raises(ValueError, match="no labels for rule 'nss', only for specinfer, block"):
        Labelling.of(table, "nss", TOY, states=True)


# ---- training


def test_training_finds_a_planted_signal(labelling, parts, trained):
    held, said = (judged(trained.network, parts[split]) for split in ("validation", "test"))
    rule, validation_gain = calibrated_rule(held, labelling, parts["validation"], SCORED[TOKENS], CALIBRATION)
    assert validation_gain > 0.02
    record = evaluate_selector(said, labelling, rule, parts["test"], CALIBRATION)
    part = record["parts"]["all"]
    assert part["selector"]["gain"]["low"] > 0.02
    selector, static, best = (part[name]["tokens_per_second"]["value"] for name in ("selector", "static", "oracle"))
    assert selector - static > 0.6 * (best - static) > 0
    assert record["trusted"] > 0.9
    assert set(record["parts"]) == {"all", "T=0.6", "T=1"}


def test_the_monitored_loss_is_the_hard_gain(labelling, parts, trained):
    rows = parts["validation"]
    said = judged(trained.network, rows)
    free = dataclasses.replace(rows, decision=0.0)  # what deciding costs is the rule's to weigh
    hard = free.chosen(said, SelectionRule(SURPLUS, 1.0, 0.0, 1e9, ())).throughput
    static = rows.static.throughput
    assert trained.best_epoch == np.argmin([epoch["val_loss"] for epoch in trained.history])
    assert trained.history[trained.best_epoch]["val_loss"] == pytest.approx(-math.log(hard / static), abs=1e-4)


def test_an_untrained_selector_chooses_statically(labelling, parts):
    """With no step taken, expected tokens are the training means: at equal contexts that is the static choice."""
    idle = dataclasses.replace(CONFIG, learning_rate=1e-12, epochs=1)
    network = fit_selector(labelling, parts["train"], parts["validation"], TOKENS, idle).network
    logs = network(parts["test"].features)
    expected = torch.from_numpy(np.log(parts["train"].efficiency_NA.mean(0))).float()
    assert torch.allclose(logs, expected.expand_as(logs), atol=1e-4)
