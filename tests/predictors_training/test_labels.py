"""Labels: which rows count, what they mean, and that nothing leaks between splits."""

import json
from pathlib import Path

import numpy as np
import pytest

from predictors.training.label_table import read_labels
from predictors.training.labels import LabelConfig, label_of, write_labels
from predictors.training.trace_table import TraceTable
from tests.predictors_training.synthetic import (
    GAMMA_MAX,
    make_labels,
    stage,
    synthetic_columns,
    write_parameters,
    write_traces,
)


def label(folder, columns, config=None):
    traces = write_traces(folder / "rounds", columns)
    return write_labels([TraceTable(traces)], config or LabelConfig(GAMMA_MAX), folder / "hrad.parquet")


def test_classes():
    assert label_of(np.array([0, 1, 3, 4, 8]), 4).tolist() == [0, 1, 1, 2, 2]
    assert label_of(np.array([0, 1, 3]), 1).tolist() == [0, 2, 2]


@pytest.mark.parametrize("gamma", [2, 3, GAMMA_MAX])
def test_a_smaller_gamma_relabels_the_same_rows(tmp_path, gamma):
    columns = synthetic_columns()
    table = make_labels(tmp_path, columns, gamma)
    assert np.array_equal(table.label, label_of(columns["accepted"], gamma))
    assert np.array_equal(table.accepted, columns["accepted"])
    assert table.metadata.gamma == gamma and table.confidence_NG.shape[1] == GAMMA_MAX


def test_a_cut_draft_is_dropped_even_where_its_rejection_was_seen(tmp_path):
    columns = synthetic_columns()
    cut = np.random.default_rng(1).random(len(columns["drafted"])) < 0.3
    columns["drafted"] = np.where(cut, 2, GAMMA_MAX)
    columns["censored"] = cut
    report = label(tmp_path, columns)
    table = read_labels(tmp_path / "hrad.parquet")
    assert len(table) == (~cut).sum() and report.to_json()["dropped"]["draft cut short of gamma"] == cut.sum()
    truth = (columns["accepted"] == 0).mean()
    known = ~cut | (columns["accepted"] < 2)  # the tempting rule: keep what is known
    assert abs((table.label == 0).mean() - truth) < 0.02
    assert (columns["accepted"][known] == 0).mean() > truth + 0.04


def test_a_draft_that_was_cut_beyond_gamma_counts(tmp_path):
    columns = synthetic_columns()
    columns["drafted"][:] = 3
    columns["accepted"] = np.minimum(columns["accepted"], 3)
    assert len(make_labels(tmp_path, columns, gamma=3)) == len(columns["accepted"])


def test_only_rows_of_the_temperature_count_and_the_contract_says_so(tmp_path):
    columns = synthetic_columns()
    columns["temperature"] = np.arange(len(columns["accepted"])) % 2
    report = label(tmp_path, columns)
    table = read_labels(tmp_path / "hrad.parquet")
    assert len(table) == len(columns["accepted"]) // 2 == report.to_json()["dropped"]["other temperature"]
    assert table.metadata.capture_contract("labels").serving_range.settings == ((0.0, 0.0, 1.0),)


def test_the_report_counts_by_split_and_slice(tmp_path):
    record = label(tmp_path, None).to_json()
    assert record["documents"] == {"train": 40, "validation": 14, "test": 14}
    for split, classes in record["classes"].items():
        assert sum(classes.values()) == record["rows"][split]
        assert classes == {name: sum(slices[split][name] for slices in record["slices"].values()) for name in classes}


def changed_manifest(folder, change):
    """Traces whose manifest was edited."""
    write_traces(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return TraceTable(folder)


def test_several_sets_are_one_table_and_one_contract(tmp_path):
    def elsewhere(manifest):
        manifest["contract"]["serving_range"] |= {"min_context": 4, "max_context": 50}

    sets = [TraceTable(write_traces(tmp_path / "one")), changed_manifest(tmp_path / "two", elsewhere)]
    report = write_labels(sets, LabelConfig(GAMMA_MAX), tmp_path / "both.parquet")
    one, both = make_labels(tmp_path / "alone"), read_labels(tmp_path / "both.parquet")
    assert len(both) == 2 * len(one) == sum(report.to_json()["rows"].values())
    assert np.array_equal(both.label, np.tile(one.label, 2))
    serving = both.metadata.capture_contract("labels").serving_range
    assert (serving.min_context, serving.max_context) == (4, 90)
    assert both.metadata.traces_sha256 != one.metadata.traces_sha256


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda manifest: manifest.update(gamma_max=3), "other has gamma_max 3 and .*one 4"),
        (
            lambda manifest: manifest["contract"]["serving_range"].update(dtype="bfloat16"),
            "one holds traces of float32 targets and .*other of bfloat16 ones: .*delete the folder .*traces\\) again",
        ),
        (
            lambda manifest: manifest["contract"]["identity"]["target"].update(weights=[1.0, 9.0]),
            "other does not belong here: target.weights",
        ),
        (
            lambda manifest: manifest["contract"]["identity"].update(tokenizer_hash="another"),
            "other does not belong here: tokenizer",
        ),
    ],
    ids=["gamma_max", "dtype", "target", "tokenizer"],
)
def test_sets_that_do_not_belong_together_are_refused_by_name(tmp_path, change, message):
    sets = [TraceTable(write_traces(tmp_path / "one")), changed_manifest(tmp_path / "other", change)]
    with pytest.raises(ValueError, match=message):
        write_labels(sets, LabelConfig(2), tmp_path / "labels.parquet")
    assert not (tmp_path / "labels.parquet").exists()


@pytest.mark.parametrize("column, what", [("document", "document"), ("prompt_id", "prompt")])
def test_a_document_or_prompt_in_two_splits_is_refused(tmp_path, column, what):
    columns = synthetic_columns()
    columns[column][-1] = columns[column][0]
    with pytest.raises(ValueError, match=f"{what} .* in split 'train' and in split 'test'"):
        label(tmp_path, columns)


def test_a_gamma_beyond_the_traces_is_refused(tmp_path):
    with pytest.raises(ValueError, match="exceeds the traces' gamma_max 4"):
        label(tmp_path, None, LabelConfig(GAMMA_MAX + 1))


def test_a_draft_of_one_token_has_no_middle_class():
    with pytest.raises(ValueError, match="gamma must be >= 2, got 1"):
        LabelConfig(1)


def test_a_temperature_that_was_not_captured_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no traces at temperature 0\.5; captured: 0\.0, 1\.0"):
        label(tmp_path, None, LabelConfig(GAMMA_MAX, temperature=0.5))


def test_a_class_without_training_rows_is_refused(tmp_path):
    columns = synthetic_columns()
    columns["accepted"] = np.where(columns["accepted"] == GAMMA_MAX, 1, columns["accepted"])
    with pytest.raises(ValueError, match=r"no row of class 'all' in split 'train'.*Collect more prompts"):
        label(tmp_path, columns)


def test_a_class_without_test_rows_is_a_warning(tmp_path):
    columns = synthetic_columns()
    all_of_test = (columns["accepted"] == GAMMA_MAX) & (columns["split"] == "test")
    columns["accepted"] = np.where(all_of_test, 1, columns["accepted"])
    with pytest.warns(UserWarning, match="no row of class 'all' in split 'test'"):
        label(tmp_path, columns)


def test_a_split_without_rows_is_refused(tmp_path):
    columns = synthetic_columns()
    columns = {name: values[columns["split"] != "validation"] for name, values in columns.items()}
    with pytest.raises(ValueError, match="in split 'validation'"):
        label(tmp_path, columns)


def test_states_that_are_not_finite_are_refused(tmp_path):
    columns = synthetic_columns()
    columns["state"][7, 3] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        label(tmp_path, columns)


def test_a_file_that_is_no_label_table_is_refused(traces, tmp_path):
    with pytest.raises(ValueError, match="is not a label table"):
        read_labels(traces / "part-00000.parquet")
    with pytest.raises(ValueError, match="does not exist"):
        read_labels(tmp_path / "none.parquet")


def test_a_failing_stage_keeps_the_earlier_table(workspace, traces):
    stage("labels", traces, "labels")
    before = {path.name: path.read_bytes() for path in Path("labels").iterdir()}
    assert set(before) == {"hrad.parquet", "hrad.json"} and json.loads(before["hrad.json"])["gamma"] == GAMMA_MAX
    bad = write_traces(workspace / "bad")
    (bad / "part-00002.parquet").write_bytes(b"PAR1")
    with pytest.raises(SystemExit, match=r"part-00002\.parquet: damaged"):
        stage("labels", bad, "labels")
    assert before == {path.name: path.read_bytes() for path in Path("labels").iterdir()}
    stage("labels", traces, "labels")
    assert before == {path.name: path.read_bytes() for path in Path("labels").iterdir()}


def test_an_unknown_parameter_is_refused_by_name(workspace, traces):
    write_parameters({"labels": {"gamma": 4, "temprature": 0.0}})
    with pytest.raises(SystemExit, match=r"pairs\.p\.labels: unknown key 'temprature'\. Did you mean 'temperature'"):
        stage("labels", traces, "labels")
