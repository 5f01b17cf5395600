"""Section ``rules``: every verification rule on the same roots, from the label table."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pipelines.outputs import MARKER, write_json
from pipelines.report.inputs import Inputs
from pipelines.report.replayed import verifiers as section
from predictors.training.intervals import jackknife
from predictors.training.labelling import LabelConfig, label_trees, write_labels
from predictors.training.tables import RootTable
from tests.predictors_training.synthetic_roots import write_roots

OVER = "block efficiency over specinfer"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A data folder with traces of trees and their labels."""
    data = tmp_path_factory.mktemp("data")
    table = RootTable.read(write_roots(data / "traces" / "trees"))
    (data / "labels").mkdir()
    labels = label_trees(table, LabelConfig())
    write_labels(labels, data / "labels" / "trees.parquet")
    return data, table.labelled(labels).rows("test")


def test_means_are_of_the_labels_at_test_roots(labelled):
    data, roots = labelled
    made = section(Inputs(data, "toy"))
    rules, actions, *_ = (table.record()["rows"] for table in made.tables)
    assert [table.name for table in made.tables] == ["T=0.6", "T=0.6, by action", "T=1", "T=1, by action"]
    here_N = roots.setting_N == 0
    for row, action in zip(actions, range(3), strict=True):
        assert row["action"] == roots.actions[action].name
        values = roots.mean_NKA[here_N, 0, action]
        assert row["specinfer"]["value"] == pytest.approx(values.mean())
        wanted = jackknife(
            np.stack([values, np.ones(len(values))], axis=1),
            roots.column("document")[here_N],
            lambda sums_DK: sums_DK[:, 0] / sums_DK[:, 1],
        )
        assert row["specinfer"]["low"] == pytest.approx(wanted["low"])
    specinfer, block = rules
    assert specinfer["on trees"]["value"] == pytest.approx(roots.mean_NKA[here_N, 0, 2].mean())
    assert block["on chains"]["value"] == pytest.approx(roots.mean_NKA[here_N, 1, :2].mean())
    assert block["on trees"] is None and block.get(OVER) is None and actions[2]["block"] is None


def test_differences_are_paired_by_root(tmp_path):
    """Roots differ far more than rules: unpaired, nothing would be known of the difference."""
    table = RootTable.read(write_roots(tmp_path / "traces" / "trees"))
    labels = label_trees(table, LabelConfig())
    mean_NKA = np.array(labels.table.column("mean").to_pylist()).reshape(len(table), 2, 3)
    mean_NKA[:, 1] = mean_NKA[:, 0] + 0.01  # block, as if it took trees and kept a little more
    place = labels.table.schema.get_field_index("mean")
    means = pa.FixedSizeListArray.from_arrays(pa.array(mean_NKA.reshape(-1)), 6)
    (tmp_path / "labels").mkdir()
    better = replace(labels, table=labels.table.set_column(place, "mean", means))
    write_labels(better, tmp_path / "labels" / "trees.parquet")
    made = section(Inputs(tmp_path, "toy"))
    for specinfer, block in (table.record()["rows"] for table in made.tables[::2]):
        assert specinfer[OVER] is None and block[OVER]["value"] == pytest.approx(0.01)
        assert block[OVER]["low"] > 0.009 and block["on trees"]["low"] < specinfer["on trees"]["value"]
    assert "block at T=0.6 and block at T=1" in made.finding


def test_labels_of_other_traces_are_refused(labelled, tmp_path):
    write_roots(tmp_path / "traces" / "trees", seed=1)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "trees.parquet").write_bytes((labelled[0] / "labels" / "trees.parquet").read_bytes())
    with pytest.raises(ValueError, match="traces_sha256"):
        section(Inputs(tmp_path, "toy"))


def test_without_labels_or_without_a_draft_there_is_no_section(labelled, tmp_path):
    assert section(Inputs(tmp_path, "toy")) is None
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "trees.parquet").write_bytes((labelled[0] / "labels" / "trees.parquet").read_bytes())
    write_json(tmp_path / "traces" / "trees" / MARKER, {})
    assert section(Inputs(tmp_path, "toy")) is None
