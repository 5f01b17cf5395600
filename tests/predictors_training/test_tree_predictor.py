"""The selector's evaluation against bounds, and what is exported of the best candidate."""

import dataclasses

import numpy as np
import pytest
import torch

from predictors.training.labelling import LabelConfig, label_trees, write_labels
from predictors.training.predictor import Materials
from predictors.training.tables import RootTable
from predictors.training.tree_predictor import (
    TreePredictor,
    calibrated_rule,
    evaluate_selector,
    judged,
    oracle_places,
    split_oracle,
)
from predictors.training.tree_training import SCORED, TOKENS, Candidate, Labelling
from predictors.tree_choice import NEVER, SURPLUS, SelectionRule
from tests.predictors_training.synthetic_roots import write_roots
from tests.predictors_training.test_trees import CALIBRATION, CONFIG, TOY, labelled, labelling, parts, table, trained

__all__ = ["labelling", "parts", "table", "trained"]  # fixtures


def test_where_there_is_nothing_to_win_the_rule_stays_static(tmp_path):
    """Noise alone: the selector's margin forbids every choice, or the gain is nothing; the split oracle sees no gap."""
    table = labelled(write_roots(tmp_path / "r", signal=0.0, noise=0.5))
    labelling = Labelling.of(table, "specinfer", TOY, states=True)
    rows = labelling.rows(table.rows("test"))
    static = rows.static.throughput
    assert rows.outcome(oracle_places(rows.efficiency_NA, rows.seconds_NA), 0.0).throughput > 1.03 * static, (
        "biased upwards"
    )
    assert split_oracle(rows).throughput < 1.01 * static
    random = np.random.default_rng(0).normal(size=rows.efficiency_NA.shape)
    never = rows.chosen((random, np.zeros(len(rows))), SelectionRule(SURPLUS, 1.0, NEVER, 1e9, ()))
    assert never.places.tolist() == rows.static_N.tolist() and never.throughput == static, (
        "nothing is asked, nothing paid"
    )


def test_a_gain_that_is_not_sure_on_validation_roots_is_not_asked_for(labelling, parts, trained):
    """The planted signal is; the same network on roots whose labels were shuffled among themselves is not."""
    rows = parts["validation"]
    said = judged(trained.network, rows)
    rule, gain = calibrated_rule(said, labelling, rows, SCORED[TOKENS], CALIBRATION)
    assert rule.asks and gain > 0
    order = np.random.default_rng(2).permutation(len(rows))
    shuffled = dataclasses.replace(
        rows, efficiency_NA=rows.efficiency_NA[order], efficiency_NDA=rows.efficiency_NDA[order]
    )
    rule, gain = calibrated_rule(said, labelling, shuffled, SCORED[TOKENS], CALIBRATION)
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
    said = judged(trained.network, parts["test"])
    rule = SelectionRule(SURPLUS, 1.0, NEVER, 1e9, labelling.settings)
    for decision in (0.0, parts["test"].decision, 1e3):
        rows = dataclasses.replace(parts["test"], decision=decision)
        record = evaluate_selector(said, labelling, rule, rows, CALIBRATION)
        for part in record["parts"].values():
            least, most = part["oracle"]["gain"]["value"], part["oracle_same_draws"]["gain"]["value"]
            assert least >= 0 and most >= -1e-12
    assert least == 0 and most == 0
    assert split_oracle(rows).throughput < rows.static.throughput


def test_one_draw_has_no_split_oracle(tmp_path):
    table = labelled(write_roots(tmp_path / "r", draws=1))
    labelling = Labelling.of(table, "specinfer", TOY, states=True)
    assert split_oracle(labelling.rows(table.rows("test"))) is None


def test_margins_hold_choices_back(parts):
    rows = parts["test"]
    worth_nothing = rows.rate_N[:, None] * rows.seconds_NA
    worth_nothing[:, 0] += 0.04
    near, far = np.zeros(len(rows)), np.full(len(rows), 2.0)
    assert set(rows.chosen((worth_nothing, near), SelectionRule(SURPLUS, 1.0, 0.0, 1.0, ())).places) == {0}
    held = rows.chosen((worth_nothing, near), SelectionRule(SURPLUS, 1.0, 0.05, 1.0, ()))
    assert held.places.tolist() == rows.static_N.tolist()
    assert held.seconds.sum() == pytest.approx(rows.outcome(rows.static_N, rows.decision).seconds.sum())
    untrusted = rows.chosen((worth_nothing, far), SelectionRule(SURPLUS, 1.0, 0.0, 1.0, ()))
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


# ---- predictor


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A selector among two candidates, its materials and what was logged."""
    folder = tmp_path_factory.mktemp("fitted")
    roots = RootTable.read(write_roots(folder / "trees"))
    write_labels(label_trees(roots, LabelConfig()), folder / "trees.parquet")
    predictor = TreePredictor(
        "specinfer", (Candidate(), Candidate(states=True)), dataclasses.replace(CONFIG, epochs=15), CALIBRATION
    )
    materials, logger = Materials(folder, folder / "trees", folder, folder, TOY), Curves()
    return predictor.fit("delayed_tree-specinfer", materials, logger), predictor, materials, logger


class Curves:
    """Remembers what is logged."""

    def __init__(self):
        self.points = []

    def log_metrics(self, metrics, step):
        self.points.append((step, metrics))


def test_the_best_candidate_is_exported_and_all_are_recorded(fitted):
    made, _, materials, logger = fitted
    tried = made.quality["candidates"]
    assert list(tried) == ["tokens-scalars", "tokens-states"] and made.quality["candidate"] == "tokens-states"
    assert tried["tokens-states"]["validation_gain"] > 0.02 >= tried["tokens-scalars"]["validation_gain"], (
        "the planted signal lies in the states"
    )
    assert made.quality["parts"]["all"]["selector"]["gain"] == tried["tokens-states"]["test_gain"]
    assert made.metrics["test_gain_over_best_static"] == tried["tokens-states"]["test_gain"]["value"]
    assert made.card["selection"]["candidate"] == "tokens-states" and made.sentence.startswith("specinfer: +")
    assert made.card["lineage"] == {"traces_sha256": RootTable.read(materials.trees).manifest.content_hash}
    curve = [metrics["tokens-states_val_loss"] for _, metrics in logger.points if "tokens-states_val_loss" in metrics]
    assert curve == [epoch["val_loss"] for epoch in made.quality["history"]]
    assert [step for step, _ in logger.points[: len(logger.points) // 2]][:3] == [0, 1, 2]


def test_a_fit_is_a_function_of_files_and_configuration(fitted, tmp_path):
    made, predictor, materials, _ = fitted
    again = dataclasses.replace(predictor, candidates=predictor.candidates[1:]).fit("delayed_tree-specinfer", materials)
    assert again.card == made.card
    assert all(torch.equal(again.tensors[key], made.tensors[key]) for key in made.tensors)


def test_labels_of_other_traces_are_refused(fitted, tmp_path):
    _, predictor, materials, _ = fitted
    other = dataclasses.replace(materials, trees=write_roots(tmp_path / "other", seed=1))
    with pytest.raises(ValueError, match="traces_sha256 is .* Run the labels stage again"):
        predictor.fit("x", other)
    with pytest.raises(ValueError, match=r"trees\.parquet does not exist"):
        predictor.fit("x", dataclasses.replace(materials, labels=tmp_path))
