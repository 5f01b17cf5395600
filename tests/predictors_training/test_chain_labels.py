"""Labels of chains: what of a draft is accepted at every position, which positions count, and that nothing leaks."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipelines.cli import main
from predictors.replay.acceptance import accepted, reached
from predictors.training.head_roots import Target
from predictors.training.labelling import TOO_LATE, ChainLabelConfig, class_of, label_chains, read_labels, write_labels
from predictors.training.tables import TextTable
from predictors.training.trace_table import list_column
from tests.predictors_training.synthetic_texts import BUDGET, LENGTH, chains, synthetic_texts, write_texts

GAMMA = 4


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return TextTable.read(write_texts(tmp_path_factory.mktemp("t") / "texts"))


def columns(labels):
    names = ("row", "accepted")
    return *(labels.table.column(name).to_numpy() for name in names), list_column(labels.table, "reached")


def test_classes():
    assert class_of(np.array([0, 1, 3, 4, 8]), 4).tolist() == [0, 1, 1, 2, 2]
    assert class_of(np.array([0, 1, 3]), 1).tolist() == [0, 2, 2]


def test_every_label_is_what_the_text_says_of_a_chain_from_there(texts):
    """From the ratios in front of the root and the text's own numbers, as replays accept; another verifier is another label."""
    _, accepted_N, reached_NG = columns(label_chains(texts, ChainLabelConfig(GAMMA)))
    found, expected, others = [], [], []
    for text in texts.texts():
        for start in range(1, text.length - GAMMA + 1):
            ratio_G, kept_G = text.columns["ratio"][start - 1, :GAMMA], text.columns["kept"][start - 1 :][:GAMMA]
            found.append(min(text.accepted()[start], GAMMA))
            expected.append(reached(ratio_G, ratio_G, texts.manifest.verifier))
            others.append(accepted(reached(ratio_G, ratio_G, "tokenwise"), kept_G))
    assert accepted_N.tolist() == found and np.not_equal(found, others).any()
    assert reached_NG == pytest.approx(np.array(expected), abs=1e-6)


def test_greedy_labels_hold_no_chance(texts):
    row_N, accepted_N, reached_NG = columns(label_chains(texts, ChainLabelConfig(GAMMA)))
    greedy = np.array([setting.greedy for setting in texts.settings])[texts.setting_N[row_N]]
    assert set(reached_NG[greedy].ravel()) == {0.0, 1.0} != set(reached_NG[~greedy].ravel())
    assert np.array_equal(reached_NG[greedy].sum(axis=1), accepted_N[greedy])
    drawn = accepted_N[~greedy, None] >= np.arange(1, GAMMA + 1)
    assert drawn.mean(axis=0) == pytest.approx(reached_NG[~greedy].mean(axis=0), abs=0.04)


def test_expected_classes_are_the_mean_of_drawn_ones(texts):
    _, accepted_N, reached_NG = columns(label_chains(texts, ChainLabelConfig(GAMMA)))
    for name in ("classes", "length"):
        target = Target(name, GAMMA)
        expected_NL = target.expected(reached_NG)
        assert expected_NL.sum(axis=1) == pytest.approx(1) and expected_NL.min() > -1e-6
        drawn_NL = np.eye(len(target.classes))[target.of(accepted_N)]
        assert expected_NL.mean(axis=0) == pytest.approx(drawn_NL.mean(axis=0), abs=0.03)


def test_a_root_whose_text_ends_too_soon_is_dropped_even_where_a_rejection_was_seen(texts):
    labels = label_chains(texts, ChainLabelConfig(GAMMA))
    row_N, accepted_N, _ = columns(labels)
    left = BUDGET - texts.column("place")
    assert np.array_equal(row_N, np.flatnonzero(left >= GAMMA))
    assert labels.report["dropped"] == {TOO_LATE: int((left < GAMMA).sum())}
    longer = dict(
        zip(*columns(label_chains(texts, ChainLabelConfig(2)))[:2], strict=True)
    )  # of two tokens more roots are known
    cut = {row: count for row, count in longer.items() if left[row] < GAMMA}
    tempting = [*accepted_N, *(count for count in cut.values() if count < 2)]  # keep what is known
    assert np.mean(np.array(tempting) == 0) > np.mean(accepted_N == 0) + 0.01
    assert np.mean([count == 0 for count in longer.values()]) == pytest.approx(np.mean(accepted_N == 0), abs=0.02)


def test_the_report_counts_by_split_slice_and_setting(texts):
    report = label_chains(texts, ChainLabelConfig(GAMMA)).report
    assert report["documents"] == {"train": 40, "validation": 28, "test": 14}
    for split, classes in report["classes"].items():
        assert sum(classes.values()) == report["rows"][split]
        for parts in (report["slices"], report["settings"]):
            assert classes == {name: sum(part[split][name] for part in parts.values()) for name in classes}
    assert list(report["settings"]) == ["T=0", "T=1"]


def changed(tmp_path, change):
    made = synthetic_texts(documents={"train": 6, "validation": 3, "test": 3})
    return TextTable.read(write_texts(tmp_path / "texts", list(map(change, made))))


@pytest.mark.parametrize("column", ["document", "prompt_id"])
def test_a_document_or_prompt_in_two_splits_is_refused(tmp_path, column):
    table = changed(tmp_path, lambda text: text | {column: "one"} if text["document"].endswith("/0") else text)
    with pytest.raises(ValueError, match=f"{column} 'one' stands in split 'train' and in split 'validation'"):
        label_chains(table, ChainLabelConfig(GAMMA))


@pytest.mark.parametrize(
    ("split", "words"), [("train", "no row of class 'some', 'all' in split 'train'"), ("test", "'all' in split 'test'")]
)
def test_a_class_without_training_rows_or_a_split_without_any_is_refused(tmp_path, split, words):
    def change(text):
        if text["split"] != split:
            return text
        rejected = chains(np.random.default_rng(0), np.zeros(LENGTH), text["temperature"])
        return text | (rejected if split == "train" else {"split": "validation"})

    with pytest.raises(ValueError, match=words):
        label_chains(changed(tmp_path, change), ChainLabelConfig(GAMMA))


def test_labels_are_joined_to_their_own_traces_only(texts, tmp_path):
    labels = label_chains(texts, ChainLabelConfig(GAMMA))
    write_labels(labels, tmp_path / "chains.parquet")
    assert read_labels(tmp_path / "chains.parquet", "chains", texts.manifest.content_hash).table.equals(labels.table)
    with pytest.raises(ValueError, match="traces_sha256"):
        read_labels(tmp_path / "chains.parquet", "chains", "0" * 64)
    with pytest.raises(ValueError, match="kind is 'chains'"):
        read_labels(tmp_path / "chains.parquet", "tokens", texts.manifest.content_hash)


def test_a_failing_stage_keeps_the_earlier_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("pairs: {p: {labels: {chains: {gamma: 4}}}}")
    texts = write_texts(tmp_path / "texts", synthetic_texts(documents={"train": 6, "validation": 3, "test": 3}))
    arguments = ["labels", "--pair", "p", "--kind", "chains", str(texts), "chains.parquet", "--report", "chains.json"]
    main(arguments)
    before = Path("chains.parquet").read_bytes()
    assert json.loads(Path("chains.json").read_text())["gamma"] == GAMMA
    (texts / "part-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(SystemExit, match=r"part-00001\.parquet: damaged"):
        main(arguments)
    assert Path("chains.parquet").read_bytes() == before and not list(tmp_path.glob("*.partial"))
    Path("params.yaml").write_text("pairs: {p: {labels: {chains: {gama: 4}}}}")
    with pytest.raises(SystemExit, match=r"pairs\.p\.labels\.chains: unknown key 'gama'\. Did you mean 'gamma'"):
        main(arguments)
