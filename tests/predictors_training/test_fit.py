"""Training: learns what is there, learns nothing where nothing is, touches only training rows, repeats itself."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from predictors.training.fit import TrainConfig, fit, prior_shift
from predictors.training.target import Target

from predictors.config import parse_config
from predictors.training import fit as fit_module
from predictors.training.metrics import macro_auc
from tests.predictors_training.synthetic import FAST, make_labels, synthetic_columns


def config(**changes):
    return parse_config(TrainConfig, {"feature_set": "paper", **FAST, **changes}, "test")


def auc_on_test(trained, table):
    test = table.rows("test")
    with torch.inference_mode():
        return macro_auc(trained.network(test.features(trained.spec)).softmax(dim=1).numpy(), test.label)


@pytest.fixture(scope="module")
def paper(table):
    return fit(table, config())


def test_a_planted_signal_is_learned(paper, table):
    assert auc_on_test(paper, table) > 0.65


def test_reading_the_first_law_helps(paper, table):
    extended = fit(table, config(feature_set="extended", reduced_size=6))
    assert auc_on_test(extended, table) > auc_on_test(paper, table) + 0.03


def length_errors(table):
    """Mean distance in tokens of the predicted from the accepted length, test rows: a trained head's, and the best constant's."""
    trained = fit(table, config(feature_set="extended", reduced_size=6, target="length", epochs=15))
    test, target = table.rows("test"), Target("length", table.metadata.gamma)
    with torch.inference_mode():
        logits = trained.network(test.features(trained.spec))
    logits = logits + prior_shift(trained.natural_shares, trained.training_shares)
    labels = target.labels(test)
    constants = [(labels - length).abs().float().mean() for length in range(len(target.classes))]
    return float((logits.argmax(dim=1) - labels).abs().float().mean()), float(min(constants))


def test_lengths_are_learned(table):
    error, constant = length_errors(table)
    assert error < constant - 0.2


def test_nothing_is_learned_from_shuffled_rows(tmp_path):
    """The failing twin: a leak would show as an AUC above one half, or as a smaller error than a constant's."""
    shuffled = make_labels(tmp_path, synthetic_columns(shuffled=True))
    assert abs(auc_on_test(fit(shuffled, config()), shuffled) - 0.5) < 0.07
    error, constant = length_errors(shuffled)
    assert error > constant - 0.1


def test_the_best_epoch_is_restored(paper, table):
    validation = table.rows("validation")
    with torch.inference_mode():
        logits = paper.network(validation.features(paper.spec)) + prior_shift(
            paper.natural_shares, paper.training_shares
        )
    loss = float(F.cross_entropy(logits, validation.labels))
    assert loss == pytest.approx(min(epoch["val_loss"] for epoch in paper.history), abs=1e-4)
    assert paper.history[paper.best_epoch]["val_loss"] == min(epoch["val_loss"] for epoch in paper.history)


def test_the_same_seed_gives_the_same_head(paper, table):
    before = torch.random.get_rng_state()
    again, other = fit(table, config()), fit(table, config(seed=1))
    assert torch.equal(before, torch.random.get_rng_state())  # the caller's own stream is not touched
    for name, tensor in paper.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name]), name
    assert again.history == paper.history
    assert not torch.equal(paper.network.head[0].weight, other.network.head[0].weight)


def test_balancing_touches_training_rows_only(table, monkeypatch):
    seen = {}

    def record(network, balanced, shares, validation, config, logger):
        seen.update(balanced=balanced, validation=validation, network=network)
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_module, "_run", record)
    states = table.state_NS.tobytes()
    with pytest.raises(KeyboardInterrupt):
        fit(table, config())
    validation = table.rows("validation")
    spec = table.metadata.feature_spec("paper")
    expected = seen["network"].reduction(validation.features(spec))
    rows, labels = seen["validation"].columns
    assert torch.equal(rows, expected) and torch.equal(labels, validation.labels)
    assert len(seen["balanced"].labels) > len(table.rows("train"))
    assert table.state_NS.tobytes() == states


def test_only_training_rows_shape_the_reduction(paper, tmp_path):
    columns = synthetic_columns()
    columns["state"][columns["split"] != "train"] += 50
    moved = fit(make_labels(tmp_path, columns), config(epochs=1))
    for name, buffer in paper.network.reduction.named_buffers():
        assert torch.equal(buffer, moved.network.reduction.get_buffer(name)), name


@pytest.mark.parametrize("method", ["weighted_sampler", "class_weights", "none"])
def test_every_way_of_balancing_trains(table, method):
    trained = fit(table, config(balance=method, epochs=2))
    assert trained.balance == method and np.isfinite(trained.history[-1]["val_loss"])


def test_training_stops_when_validation_does_not_improve(table):
    trained = fit(table, config(epochs=40, stop_patience=2, learning_rate=0.05))
    assert len(trained.history) == trained.best_epoch + 3 < 40


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"feature_set": "papr"}, "unknown feature_set 'papr'; known: paper, extended"),
        ({"balance": "smoke"}, "unknown balance"),
        ({"target": "lengths"}, "unknown target 'lengths'; known: classes, length"),
        ({"hidden_sizes": [4]}, "two numbers"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"learning_rat": 1.0}, "Did you mean 'learning_rate'"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_more_components_than_columns_are_refused(table):
    with pytest.raises(ValueError, match="Lower reduced_size"):
        fit(table, config(reduced_size=500))
