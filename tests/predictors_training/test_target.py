"""What a head predicts: labels of both kinds from the same accepted counts."""

import numpy as np
import pytest
from predictors.training.target import Target

from tests.predictors_training.synthetic import GAMMA_MAX, make_labels, synthetic_columns


def test_classes_are_the_tables_labels(table):
    target = Target("classes", GAMMA_MAX)
    assert np.array_equal(target.labels(table).numpy(), table.label)
    assert target.classes == ("none", "some", "all") and not target.ordered


@pytest.mark.parametrize("gamma", [2, 3, GAMMA_MAX])
def test_lengths_are_accepted_counts_up_to_gamma(tmp_path, gamma):
    """Rows were drafted to γ_max: what is accepted beyond γ counts as γ, or it would be no class of the head."""
    columns = synthetic_columns()
    table, target = make_labels(tmp_path, columns, gamma), Target("length", gamma)
    labels = target.labels(table).numpy()
    assert labels.tolist() == [min(accepted, gamma) for accepted in columns["accepted"].tolist()]
    assert labels.max() == gamma == len(target.classes) - 1 and target.ordered
    assert (columns["accepted"].max() > gamma) == (gamma < GAMMA_MAX)
    assert np.array_equal(np.sign(labels) + (labels == gamma), Target("classes", gamma).labels(table).numpy())


def test_names_and_unknown_counts():
    assert Target("length", 3).classes == ("0", "1", "2", "3")
    assert Target("length", 3).of(np.array([-1, 0, 2, 9])).tolist() == [0, 0, 2, 3]  # -1: no round came before
    with pytest.raises(ValueError, match="unknown target 'both'; known: classes, length"):
        Target("both", 3)
