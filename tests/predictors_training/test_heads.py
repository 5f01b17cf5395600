"""Heads from texts: rows are what sessions meet, nothing leaks, and what is exported is what was measured."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from predictors.bundle import Bundle
from predictors.config import parse_config
from predictors.controllers import build_controller, learned_controller
from predictors.replay.chains import ChainPolicy, replayed
from predictors.training import head_predictor, head_training
from predictors.training.calibration import MacroAuc, prior_shift
from predictors.training.head_predictor import HeadFit, HeadPredictor, changed
from predictors.training.head_roots import RootRows
from predictors.training.head_training import HeadTrainConfig, train
from predictors.training.tables import TextTable
from tests.predictors_training.conftest import labelled
from tests.predictors_training.stages import FAST, GAMMA, HEAD
from tests.predictors_training.synthetic_texts import synthetic_texts, write_texts

CONFIG = parse_config(HeadPredictor, {key: value for key, value in HEAD.items() if key != "family"}, "test")


def config(**changes):
    return parse_config(HeadTrainConfig, FAST | changes, "test")


@pytest.fixture(scope="module")
def made(materials):
    return HeadFit(CONFIG, materials)


def rows_of(fit, *static):
    return fit.rows(fit.unsaid, dict.fromkeys(range(2), static), {})[0]


@pytest.fixture(scope="module")
def rows(made):
    return rows_of(made, 3, 3)


@pytest.fixture(scope="module")
def head(made, rows):
    return train(rows["train"], rows["validation"], config())


def trained_rows(materials):
    return TextTable.read(materials.texts).column("split") == "train"


def auc_on_test(fit, rows, head):
    test = rows["test"]
    with torch.inference_mode():
        return MacroAuc(head.network(test.features).softmax(dim=1).numpy(), test.label_P)()


# ---- rows


@pytest.mark.parametrize("controller", [{"kind": "fixed", "gamma": 3}, {"kind": "fixed", "gamma": 5}])
def test_rows_hold_every_root_that_real_sessions_meet(made, materials, controller):
    """With the round before it; of a static length above γ all tokens count, below it an uncut round says nothing."""
    found = rows_of(made, controller["gamma"], controller["gamma"])
    known = set(zip(found["test"].row_P.tolist(), found["test"].past_P.tolist(), strict=True))
    first, seen = 0, set()
    table = TextTable.read(materials.texts)
    for text in table.texts():
        start, past = 1, 0
        for one in replayed(text, ChainPolicy(build_controller(controller), 5)):
            row = first + start - 1
            if table.column("split")[row] == "test" and made.roots.known_R[row]:
                seen.add((row, past))
            start += one.emitted
            tested = one.accepted < one.submitted or one.submitted >= GAMMA
            past = 1 + min(one.accepted, GAMMA) if tested else 0
        first += text.length - 1
    assert seen <= known and len(known) > 1.5 * len(seen), "a round from every position meets more than decodes do"
    assert not seen <= {(row, (past + 1) % (GAMMA + 2)) for row, past in known}


def test_most_positions_are_learned_from(made, materials, rows):
    """A decode visits a third of them; those with fewer than γ tokens of text left are none."""
    assert len(rows["train"]) > 0.75 * trained_rows(materials).sum()
    assert made.roots.known_R[rows["train"].row_P].all()


def test_features_are_those_that_sessions_see(made, materials, monkeypatch):
    """The exported controller on a recorded text, against the rows it was learned from; another past is another row."""
    fitted = replace(CONFIG, rule=None, iterations=1).fit("hrad", materials)
    for setting in fitted.card["settings"]:
        setting["rule"] = setting["retention"] = setting["tried"]
    controller = learned_controller(Bundle(fitted.card, fitted.tensors))
    seen, features = [], controller.features
    monkeypatch.setattr(
        controller, "features", lambda root, law: seen.append((root, features(root, law))) or seen[-1][1]
    )
    table, first, pasts = TextTable.read(materials.texts), 0, set()
    for text in list(table.texts())[:6]:
        seen.clear()
        list(replayed(text, ChainPolicy(controller, 5)))
        for root, row in seen:
            place, previous = first + root.position - text.prompt_tokens - 1, root.previous
            drafted, accepted = (-1, 0) if previous is None else (previous.submitted, previous.accepted)
            tested = 0 <= accepted < drafted or drafted >= GAMMA
            past = np.array([1 + min(accepted, GAMMA) if tested else 0])
            expected = made.roots.features(np.array([place]), past)
            torch.testing.assert_close(row, expected, rtol=0, atol=0)
            assert not torch.equal(row, made.roots.features(np.array([place]), (past + 1) % (GAMMA + 2)))
            pasts.add(int(past[0]))
        first += text.length - 1
    assert len(pasts) > 2


def test_a_root_is_learned_from_once_where_its_past_is_not_read(rows):
    paper = replace(rows["train"].roots, spec=replace(rows["train"].roots.spec, feature_set="paper"))
    several = RootRows(paper, np.array([4, 4, 7, 4]), np.array([2, 1, 0, 2]))
    assert several.distinct.row_P.tolist() == [4, 7] and several.distinct.past_P.tolist() == [2, 0]
    assert rows["train"].distinct is rows["train"]


def test_rows_settle(materials, monkeypatch):
    """Most rows change with the first policy that is served, few with the second. Counted are those of the last training."""
    counts = []
    monkeypatch.setattr(
        head_predictor,
        "train",
        lambda *rows_and_others: counts.append(len(rows_and_others[0])) or train(*rows_and_others),
    )
    quality = replace(CONFIG, target="length", iterations=2).fit("length", materials).quality
    shares = quality["changed"]
    assert shares[0] > 3 * shares[1]
    assert counts[0] != counts[1] == quality["rows"]["train"]
    assert (
        changed(RootRows(None, np.array([1, 2]), np.array([0, 0])), RootRows(None, np.array([1, 3]), np.array([0, 0])))
        == 0.5
    )


# ---- training


def test_a_planted_signal_is_learned(made, rows, head):
    assert auc_on_test(made, rows, head) > 0.7


@pytest.mark.parametrize("targets", ["drawn", "expected"])
def test_nothing_is_learned_where_nothing_is(tmp_path, targets):
    """The failing twin: a leak would show as an AUC above one half."""
    write_texts(tmp_path / "texts", synthetic_texts(informative=False))
    fit = HeadFit(replace(CONFIG, feature_set="paper"), labelled(tmp_path, tmp_path))
    found = rows_of(fit, 3, 3)
    blind = train(found["train"], found["validation"], config(targets=targets))
    assert abs(auc_on_test(fit, found, blind) - 0.5) < 0.07


def test_expected_targets_train_too_and_keep_to_their_rows(made, rows, monkeypatch):
    expected = train(rows["train"], rows["validation"], config(targets="expected"))
    assert auc_on_test(made, rows, expected) > 0.7
    seen = {}
    monkeypatch.setattr(head_training, "fitted", lambda module, drawn, *others: seen.update(made=drawn) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(rows["train"], rows["validation"], config(targets="expected"))
    chances, count = seen["made"].columns[1], len(rows["train"])
    torch.testing.assert_close(chances[:count], torch.from_numpy(rows["train"].expected_PL).float())
    assert len(chances) > count and chances.sum(dim=1).numpy() == pytest.approx(1, abs=1e-4)


def test_the_best_epoch_is_restored(made, rows, head):
    validation = rows["validation"]
    with torch.inference_mode():
        logits = head.network(validation.features) + prior_shift(head.natural_shares, head.training_shares)
    loss = float(F.cross_entropy(logits, torch.from_numpy(validation.label_P)))
    assert loss == pytest.approx(min(epoch["val_loss"] for epoch in head.history), abs=1e-4)
    assert head.history[head.best_epoch]["val_loss"] == min(epoch["val_loss"] for epoch in head.history)


def test_the_same_seed_gives_the_same_head(made, rows, head):
    before = torch.random.get_rng_state()
    again, other = (train(rows["train"], rows["validation"], config(seed=seed)) for seed in (0, 1))
    assert torch.equal(before, torch.random.get_rng_state())  # the caller's own stream is not touched
    for name, tensor in head.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name]), name
    assert again.history == head.history
    assert not torch.equal(head.network.head[0].weight, other.network.head[0].weight)


def test_only_training_rows_shape_the_reduction(made, materials, rows, head):
    moved = replace(made.roots, state_RS=made.roots.state_RS.copy())
    moved.state_RS[~trained_rows(materials)] += 50
    parts = (RootRows(moved, rows[split].row_P, rows[split].past_P) for split in ("train", "validation"))
    again = train(*parts, config(epochs=1))
    for name, buffer in head.network.reduction.named_buffers():
        assert torch.equal(buffer, again.network.reduction.get_buffer(name)), name
