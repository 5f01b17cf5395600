import re

import pytest

from pipelines.builtin.corpus import Document, manifest_hash, split_documents


def test_every_slice_is_there_and_every_text_is_there_once(documents):
    assert {document.slice for document in documents} == {"code", "prose", "tables"}
    assert (
        len({document.id for document in documents}) == len({document.text for document in documents}) == len(documents)
    )
    assert sum(document.slice == "tables" for document in documents) >= 24


def test_tests_and_installed_packages_are_left_out(documents):
    wrong = re.compile(r"(^|/)(test|tests|idle_test|site-packages|dist-packages)/|_sysconfigdata")
    assert [document.id for document in documents if wrong.search(document.id)] == []


def test_merged_topics_are_long_enough_and_share_no_paragraph(documents):
    prose = [document for document in documents if document.slice == "prose"]
    assert min(len(document.text) for document in prose) >= 1500
    paragraphs = [p for document in prose for p in document.text.split("\n\n") if len(p) >= 40]
    shared = len(paragraphs) - len(set(paragraphs))
    assert shared <= 0.02 * len(paragraphs)  # within one topic a paragraph may come twice


def test_split_holds_out_enough_of_every_slice(documents):
    rest, held_out = split_documents(documents, 0.14)
    assert not {document.id for document in rest} & {document.id for document in held_out}
    assert len(rest) + len(held_out) == len(documents)
    assert len(held_out) >= 0.12 * len(documents)
    for name in ("code", "prose", "tables"):
        assert sum(document.slice == name for document in held_out) >= 4


def test_split_does_not_depend_on_the_order_of_documents(documents):
    _, held_out = split_documents(documents, 0.14)
    _, reversed_held_out = split_documents(documents[::-1], 0.14)
    assert {document.id for document in held_out} == {document.id for document in reversed_held_out}


def test_manifest_hash_sees_content_and_split():
    one, two, changed = Document("a", "x", "s"), Document("b", "y", "s"), Document("a", "z", "s")
    hashes = {
        manifest_hash({"train": [one], "test": [two]}),
        manifest_hash({"train": [two], "test": [one]}),
        manifest_hash({"train": [changed], "test": [two]}),
    }
    assert len(hashes) == 3
    assert manifest_hash({"train": [one, two]}) == manifest_hash({"train": [two, one]})


def test_a_share_outside_of_the_unit_interval_is_refused():
    with pytest.raises(ValueError, match=r"\[0, 1\), got 1"):
        split_documents([], 1.0)
