"""Latency tables between, on and beyond their grid; the profile's file and its ratios."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.outputs import write_json
from predictors.latency.profile import Latency, LatencyProfile, LatencyTable, read_profile
from tests.predictors.affine_profile import PROFILE

# seconds [rows 1, 4; context 100, 200]: not symmetric, and square, so that swapped axes would show
DRAFT = np.array([[1.0, 2.0], [3.0, 8.0]])


def table(axes, median, spread=0.0, calls=40):
    median = np.array(median, dtype=float)
    return LatencyTable(axes, median, median - spread, median + 2 * spread, calls)


def draft_table():
    return table({"rows": (1, 4), "context": (100, 200)}, DRAFT, spread=0.5)


def profile(**changes):
    tables = {"draft": draft_table(), "target": table({"tokens": (1, 3), "context": (100, 200)}, [[10, 12], [14, 18]])}
    return LatencyProfile(**{"tables": tables, "pair": "toy", "settings": {}, "provenance": {}} | changes)


@pytest.mark.parametrize(
    ("rows", "context", "seconds"),
    [
        *(
            (rows, context, DRAFT[row, column])
            for row, rows in enumerate((1, 4))
            for column, context in [(0, 100), (1, 200)]
        ),
        (1, 150, 1.5),
        (2, 100, 1 + 2 / 3),
        (2, 125, 1.25 + 1.0),  # at context 125: 1.25 for one row and 4.25 for four; two rows are a third of the way
        (1, 400, 2 + 2 * 1),  # above the grid the last segment goes on
        (7, 100, 3 + 2),
        (7, 300, 13 + 10),  # at context 300: 3 for one row, 13 for four; seven rows are one segment further
        (1, 5, 1),  # below the grid the edge stands
        (0, 150, 1.5),
    ],
)
def test_a_table_is_read_between_and_beyond_its_grid(rows, context, seconds):
    read = draft_table().at(rows=rows, context=context)
    assert (read.seconds, read.low, read.high) == pytest.approx((seconds, seconds - 0.5, seconds + 1.0))


@pytest.mark.parametrize(
    ("grid", "median", "at", "seconds"),
    [
        ((1, 2, 5), [1, 3, 6], (1.5, 2, 3, 4, 5), [2, 3, 4, 5, 6]),  # every segment has its own slope
        ((1, 2, 4), [1, 3, 2], (3, 100), [2.5, 2]),  # a falling last segment is level beyond
        ((2, 4), [3, 1], (1,), [3]),
        ((64,), [2], (1, 64, 9000), [2, 2, 2]),  # a single point is a constant
    ],
)
def test_segments(grid, median, at, seconds):
    assert [table({"tokens": grid}, median).at(tokens=tokens).seconds for tokens in at] == pytest.approx(seconds)


def test_the_spread_holds_the_median_where_the_lines_cross():
    axes = {"tokens": (1, 2)}
    steep_median = LatencyTable(axes, np.array([1.0, 3.0]), np.array([0.5, 2.9]), np.array([2.5, 3.1]), 4)
    beyond = steep_median.at(tokens=4)
    assert (beyond.seconds, beyond.low, beyond.high) == pytest.approx((7.0, 7.0, 7.0))


@pytest.mark.parametrize("wrong", [{"rows": 1}, {"rows": 1, "contexts": 100}, {"rows": 1, "context": 1, "tokens": 1}])
def test_coordinates_are_named(wrong):
    with pytest.raises(ValueError, match="takes the coordinates rows, context, got .*rows"):
        draft_table().at(**wrong)


GRIDS = st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True).map(sorted)


@st.composite
def tables(draw):
    axes = {"rows": draw(GRIDS), "context": draw(GRIDS)}
    shape = tuple(len(grid) for grid in axes.values())
    cells = [draw(st.lists(st.integers(1, 99), min_size=3, max_size=3).map(sorted)) for _ in range(int(np.prod(shape)))]
    low, median, high = np.array(cells, dtype=float).T.reshape(3, *shape)
    return LatencyTable(axes, median, low, high, 1)


@settings(deadline=None, derandomize=True)
@given(tables(), st.floats(-10, 200), st.floats(-10, 200))
def test_properties(drawn, rows, context):
    read = drawn.at(rows=rows, context=context)
    assert 0 < read.low <= read.seconds <= read.high
    assert drawn.with_axes(["context", "rows"]).at(rows=rows, context=context) == read
    if rows <= drawn.axes["rows"][-1] and context <= drawn.axes["context"][-1]:
        assert drawn.median.min() - 1e-9 <= read.seconds <= drawn.median.max() + 1e-9
    beyond = [drawn.at(rows=drawn.axes["rows"][-1] + more, context=context).seconds for more in (0, 1, 2)]
    assert beyond == sorted(beyond)
    assert beyond[2] - beyond[1] == pytest.approx(beyond[1] - beyond[0]), "a line beyond the grid"


def test_round_trip_through_a_writer_that_sorts_keys(tmp_path):
    path = tmp_path / "cpu.json"
    written = profile(settings={"calls": 3}, provenance={"device": "here"}, noise=("draft rows=1: loud",))
    write_json(path, written.to_record())
    read = read_profile(path)
    assert read.to_record() == written.to_record()
    assert (read.pair, read.settings, read.provenance) == ("toy", {"calls": 3}, {"device": "here"})
    assert read.noise == ("draft rows=1: loud",)
    assert list(read.tables["draft"].axes) == ["rows", "context"], "known tables come in their documented order"
    assert read.tables["draft"].median.tolist() == DRAFT.tolist()
    assert read.latency("draft", rows=4, context=100) == Latency(3, 2.5, 4)
    assert read.profile_hash == written.profile_hash


def test_a_file_is_read_in_the_order_it_states(tmp_path):
    path = tmp_path / "cpu.json"
    record = profile().to_record()
    swapped = record["tables"]["draft"]
    assert list(swapped["axes"]) == ["context", "rows"]
    swapped["axes"] = {name: swapped["axes"][name] for name in ("rows", "context")}
    for name in ("median", "low", "high"):
        swapped[name] = np.transpose(swapped[name]).tolist()
    path.write_text(json.dumps(record))
    assert read_profile(path).tables["draft"].median.tolist() == DRAFT.tolist()


def test_the_hash_is_that_of_the_tables():
    base = profile()
    assert base.profile_hash == profile(pair="other", provenance={"device": "b"}, settings={"calls": 1}).profile_hash
    assert base.profile_hash == profile(tables=dict(reversed(base.tables.items()))).profile_hash
    swapped = base.tables["draft"].with_axes(["context", "rows"])
    assert base.profile_hash == profile(tables=base.tables | {"draft": swapped}).profile_hash
    changed = table({"rows": (1, 4), "context": (100, 200)}, DRAFT.T, spread=0.5)
    assert base.profile_hash != profile(tables=base.tables | {"draft": changed}).profile_hash


def test_ratios_by_hand():
    toy = profile()
    assert toy.cost_ratio(context=100) == pytest.approx(10 / 1)
    assert toy.cost_ratio(context=150) == pytest.approx(11 / 1.5)
    assert toy.verify_ratio(tokens=3, context=200) == pytest.approx(18 / 12)
    assert toy.verify_ratio(tokens=2, context=100) == pytest.approx(1.2)
    assert toy.verify_ratio(tokens=1, context=170) == 1


def test_tables_are_asked_for_by_name():
    with pytest.raises(ValueError, match="toy has no table 'predictor', only draft, target.*dvc repro"):
        profile().latency("predictor", features=1)
    with pytest.raises(ValueError, match="table 'draft': this table takes the coordinates rows, context"):
        profile().latency("draft", tokens=1)


def change(record, value, *keys):
    for key in keys[:-1]:
        record = record[key]
    record[keys[-1]] = value


@pytest.mark.parametrize(
    ("value", "keys", "message"),
    [
        (1, ["commit"], "unknown key 'commit'"),
        ([[1, 2], [3]], ["tables", "draft", "median"], r"tables\.draft\.median: expected a regular grid"),
        ([1, 2], ["tables", "draft", "high"], r"high has the shape \(2,\), which does not fit the axes \(context: 2"),
        ([[1, 3], [2, 0]], ["tables", "draft", "median"], r"median holds 0\.0, and a latency"),
        ([[1, 3], [2, float("nan")]], ["tables", "draft", "median"], "median holds nan"),
        ([[5, 3], [2, 8]], ["tables", "draft", "median"], "a median lies outside its quartiles"),
        ([4, 1], ["tables", "draft", "axes", "rows"], r"axis rows must be ascending whole numbers, got \[4, 1\]"),
        ([1, 4.5], ["tables", "draft", "axes", "rows"], "axis rows must be ascending whole numbers"),
        ({"context": [100, 200], "row": [1, 4]}, ["tables", "draft", "axes"], "and must be rows, context"),
        (0, ["tables", "draft", "calls"], "calls must be >= 1, got 0"),
    ],
)
def test_a_bad_file_is_named_with_the_remedy(tmp_path, value, keys, message):
    path = tmp_path / "cpu.json"
    record = profile().to_record()
    change(record, value, *keys)
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"^{path}: profile.*{message}.*dvc repro"):
        read_profile(path)


def test_a_missing_or_damaged_file_is_named_with_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="none.json: no latency profile can be read there .*dvc repro"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"schema": 2,')
    with pytest.raises(ValueError, match="cut.json: damaged latency profile .*dvc repro"):
        read_profile(tmp_path / "cut.json")
    record = profile().to_record()
    del record["pair"]
    (tmp_path / "short.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="short.json: profile: key 'pair' is missing.*dvc repro"):
        read_profile(tmp_path / "short.json")


def test_another_cost_ratio_scales_the_drafts_passes_alone():
    cheap = PROFILE.at_cost_ratio(17.0, context=128)
    assert cheap.cost_ratio(128) == pytest.approx(17.0)
    factor = PROFILE.cost_ratio(128) / 17.0
    for name, table in PROFILE.tables.items():
        scale = factor if name in ("draft", "draft_prefill") else 1.0
        np.testing.assert_allclose(cheap.tables[name].median, scale * table.median)
    with pytest.raises(ValueError, match="is > 0, got 0"):
        PROFILE.at_cost_ratio(0, 128)
