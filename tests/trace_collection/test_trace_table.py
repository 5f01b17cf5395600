"""Reading traces: whole shards or one clear message; rows keep the number that they have in the whole trace."""

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from predictors.bundle import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.sampling import SamplingSettings
from predictors.schema import MANIFEST, PLACE_COLUMNS
from predictors.training.trace_table import Manifest, TraceTable
from trace_collection.shards import shard_name, trace_schema, write_manifest, write_shard

COLUMNS = {**PLACE_COLUMNS, "number": "int32", "state": "state<float16>"}
SIZE = 3
SPLITS = ("train", "validation", "test", "train")  # of four shards with five rows each


@dataclass(frozen=True)
class ToyManifest(Manifest):
    state_size: int

    def sizes(self):
        return {"state": self.state_size}


class ToyTable(TraceTable[ToyManifest]):
    columns = COLUMNS
    version = 7
    of = "toys"
    kind = ToyManifest


class LazyTable(ToyTable):
    wide = ("state",)


@pytest.fixture
def folder(tmp_path):
    ranges = ServingRange("float32", ((0.0, 0.0, 1.0),), 1, 9)
    contract = CaptureContract(Identity(ModelIdentity("t", (1.0,)), None, "k", None, ()), ranges, {}).to_json()
    schema = trace_schema(COLUMNS, {"state": SIZE}, 7, "f", contract)
    for index, split in enumerate(SPLITS):
        place = {"prompt_id": f"p{index}", "document": "d", "slice": "code", "split": split, "batch_size": 1}
        settings = {"temperature": 0.6 * (index % 2), "top_k": 0, "top_p": 1.0, "invariant": False}
        numbers = np.arange(5) + 5 * index
        part = {**place, **settings, "number": numbers, "state": numbers[:, None] + np.arange(SIZE) / 4}
        write_shard(tmp_path / shard_name(index), [{}, part], schema)
    facts = {"schema_version": 7, "fingerprint": "f", "contract": contract, "state_size": SIZE}
    assert write_manifest(tmp_path, [shard_name(index) for index in range(4)], facts) == 20
    return tmp_path


def edit_manifest(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("kind", [ToyTable, LazyTable])
def test_rows_are_those_written_in_order(folder, kind):
    table = kind.read(folder)
    assert len(table) == 20 and table.column("number").tolist() == [*range(20)] == table.index.tolist()
    assert table.column("state").dtype == np.float16
    assert np.array_equal(table.column("state"), np.arange(20)[:, None] + np.arange(SIZE) / 4)
    assert table.column("prompt_id").tolist() == [f"p{index}" for index in range(4) for _ in range(5)]
    assert table.settings == [SamplingSettings(0.0), SamplingSettings(0.6)]
    assert table.setting_N.tolist() == [index % 2 for index in range(4) for _ in range(5)]
    assert table.manifest.capture_contract("traces").identity.draft is None


@pytest.mark.parametrize("kind", [ToyTable, LazyTable])
def test_rows_of_a_split_keep_their_numbers(folder, kind):
    whole = kind.read(folder)
    train = whole.rows("train")
    assert train.index.tolist() == [*range(5), *range(15, 20)] == train.column("number").tolist()
    assert np.array_equal(train.column("state"), whole.column("state")[train.index])
    assert train.rows("train").index.tolist() == train.index.tolist()
    with pytest.raises(ValueError, match="no traces of split 'reserve'. Raise traces.toys.prompts"):
        whole.rows("reserve")


def test_a_wide_column_is_read_once_when_it_is_asked_for_and_of_sound_shards(folder):
    table, late = LazyTable.read(folder), LazyTable.read(folder)
    states = table.rows("test").column("state")
    path = folder / shard_name(1)
    path.write_bytes(path.read_bytes()[:-100])
    assert np.array_equal(table.column("state")[10:15], states) and "state" not in table.table.column_names
    assert late.column("number").tolist() == [*range(20)]
    with pytest.raises(ValueError, match=r"part-00001\.parquet.*damaged.*traces stage again"):
        late.column("state")


def test_an_unfinished_collection_is_told(folder):
    (folder / MANIFEST).unlink()
    with pytest.raises(ValueError, match="collection did not finish"):
        ToyTable.read(folder)
    for content in ("null", "[1]", "{"):
        (folder / MANIFEST).write_text(content)
        with pytest.raises(ValueError, match="damaged manifest"):
            ToyTable.read(folder)


@pytest.mark.parametrize("keep", [0, 4, 200])
def test_a_truncated_shard_is_named(folder, keep):
    path = folder / shard_name(1)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"part-00001\.parquet.*damaged.*traces stage again"):
        ToyTable.read(folder)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"schema_version": 99}, "schema version 99"),
        ({"of": "guesses"}, "these are traces of guesses, and those of toys are needed"),
        ({"state_size": 7}, r"part-00000\.parquet: column state is .*, not a list of 7"),
        ({"state_size": "3"}, "state_size"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(folder, change, message):
    edit_manifest(folder, **change)
    with pytest.raises(ValueError, match=message):
        ToyTable.read(folder)


def test_missing_parts_are_named(folder):
    record = json.loads((folder / MANIFEST).read_text())
    (folder / shard_name(2)).unlink()
    with pytest.raises(ValueError, match=r"part-00002\.parquet: this shard is missing"):
        ToyTable.read(folder)
    del record["state_size"]
    (folder / MANIFEST).write_text(json.dumps(record))
    with pytest.raises(ValueError, match="'state_size' is missing"):
        ToyTable.read(folder)


def test_other_rows_or_columns_than_the_manifests_are_refused(folder):
    shards = json.loads((folder / MANIFEST).read_text())["shards"]
    shards[0]["rows"] = 4
    edit_manifest(folder, shards=shards)
    with pytest.raises(ValueError, match="5 rows where the manifest says 4"):
        ToyTable.read(folder)

    class More(ToyTable):
        columns: ClassVar = {**COLUMNS, "more": "int32"}

    with pytest.raises(ValueError, match="column more is missing"):
        More.read(folder)
