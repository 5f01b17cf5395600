"""Reading round traces: whole shards or one clear message."""

import hashlib
import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from predictors.contract import ContractError
from predictors.schema import MANIFEST
from predictors.training.trace_table import TraceTable, list_column
from tests.predictors_training.synthetic import STATE, arrow_table, synthetic_columns


@pytest.fixture
def folder(traces, tmp_path):
    return shutil.copytree(traces, tmp_path / "rounds")


def edit_manifest(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_shards_hold_all_rows_in_order(traces):
    states = np.concatenate([list_column(shard, "state") for shard in TraceTable(traces).shards()])
    expected = synthetic_columns()["state"].astype(np.float16)
    assert states.dtype == np.float16 and states.shape == (len(expected), STATE)
    assert np.array_equal(states, expected)


def test_the_state_column_is_read_without_a_copy():
    table = arrow_table(synthetic_columns(rows_per_document=2))
    chunk = table.column("state").chunk(0)
    view = list_column(table, "state")
    assert view.__array_interface__["data"][0] == chunk.values.buffers()[1].address
    assert np.array_equal(list_column(table.slice(5, 3), "state"), view[5:8])


def test_an_unfinished_collection_is_told(folder):
    (folder / MANIFEST).unlink()
    with pytest.raises(ValueError, match="collection did not finish"):
        TraceTable(folder)


@pytest.mark.parametrize("keep", [0, 4, 200])
def test_a_truncated_shard_is_named(folder, keep):
    path = folder / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"part-00001\.parquet.*damaged.*traces stage again"):
        list(TraceTable(folder).shards())


def test_a_shard_that_was_hashed_when_truncated_is_named(folder):
    path = folder / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["shards"][1]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_manifest(folder, shards=manifest["shards"])
    with pytest.raises(ValueError, match=r"part-00001\.parquet: not a readable Parquet file"):
        list(TraceTable(folder).shards())


def test_a_missing_shard_is_named(folder):
    (folder / "part-00002.parquet").unlink()
    with pytest.raises(ValueError, match=r"part-00002\.parquet: this shard is missing"):
        list(TraceTable(folder).shards())


def test_another_schema_version_is_refused(folder):
    edit_manifest(folder, schema_version=99)
    with pytest.raises(ValueError, match="schema version 99"):
        TraceTable(folder)


def test_an_incomplete_manifest_is_refused(folder):
    record = json.loads((folder / MANIFEST).read_text())
    del record["gamma_max"]
    (folder / MANIFEST).write_text(json.dumps(record))
    with pytest.raises(ValueError, match="'gamma_max' is missing"):
        TraceTable(folder)


def test_states_of_another_size_are_refused(folder):
    edit_manifest(folder, hidden_size=7)
    with pytest.raises(ValueError, match="column state is"):
        list(TraceTable(folder).shards())


def test_layers_that_are_not_the_contracts_are_refused(folder):
    edit_manifest(folder, feature_layers=[3, 4])
    manifest = TraceTable(folder).manifest
    with pytest.raises(ContractError, match="layer_ids"):
        manifest.capture_contract("traces")


def test_an_empty_table_has_an_empty_state():
    table = arrow_table(synthetic_columns(rows_per_document=2)).slice(0, 0)
    assert list_column(table, "state").shape == (0, STATE)
    assert list_column(pa.concat_tables([table, table]), "state").dtype == np.float16
