import sysconfig
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from pipelines.builtin.corpus import Document, Shares, docstrings, paragraphs, share_documents, without

PAIR = Shares(pair=0.6, train=0.12, validation=0.07, test=0.16, reserve=0.05)
SOURCE = '''"""Of the module."""

class A:
    """Of A:

    a line
        indented
    """

    def f(self):
        """Of f."""
        return "no docstring"

def g():
    return 1
'''


@pytest.fixture(scope="module")
def shares(documents):
    return share_documents(documents, asdict(PAIR))


def test_every_slice_is_there_and_every_text_is_there_once(documents):
    assert {document.slice for document in documents} == {"code", "prose", "tables"}
    assert (
        len({document.id for document in documents}) == len({document.text for document in documents}) == len(documents)
    )
    assert sum(document.slice == "tables" for document in documents) >= 60


def test_prose_is_long_enough_and_no_paragraph_of_it_stands_elsewhere(documents):
    """Merged topics and docstrings; a twin that takes the topics as they are shares several hundred."""
    prose = [document for document in documents if document.slice == "prose"]
    assert min(len(document.text) for document in prose) >= 800
    assert len(prose) >= 100
    of_code = Counter(p for d in documents if d.slice == "code" for p in paragraphs("\n\n".join(docstrings(d.text))))
    of_prose = Counter(p for document in prose for p in paragraphs(document.text))
    assert max(of_prose.values()) == 1
    assert not of_prose.keys() & of_code.keys()


def test_a_file_is_code_or_prose(documents):
    """A file that consists of docstrings for a large part is prose without its code."""
    manuals = [d for d in documents if d.slice == "prose" and not d.id.startswith("topics/")]
    assert len(manuals) >= 50
    assert not {document.id for document in manuals} & {d.id for d in documents if d.slice != "prose"}
    for manual in manuals:
        source = (Path(sysconfig.get_paths()["stdlib"]) / manual.id).read_text(encoding="utf-8", errors="replace")
        assert paragraphs(manual.text) <= paragraphs("\n\n".join(docstrings(source)))


def test_docstrings_are_in_order_and_dedented():
    assert docstrings(SOURCE) == ["Of the module.", "Of A:\n\na line\n    indented", "Of f."]
    assert docstrings("def f(:") == []


def test_only_paragraphs_that_were_seen_are_left_out():
    text = "Short.\n\nA paragraph that is long enough to be told\nfrom others.\n\nThe end."
    seen = paragraphs("A paragraph that is long enough\nto be told from others.\n\nShort.")
    assert seen == {"A paragraph that is long enough to be told from others."}
    assert without(text, seen) == "Short.\n\nThe end."


def test_the_pairs_shares_are_large_enough_in_every_slice(shares):
    sizes = {name: len(some) for name, some in shares.items()}
    assert sizes["test"] >= 100 and sizes["train"] >= 80 and sizes["validation"] >= 50 and sizes["reserve"] >= 30
    assert sizes["pair"] == pytest.approx(0.6 * sum(sizes.values()), abs=2)
    test = Counter(document.slice for document in shares["test"])
    assert test["prose"] > 15 and test["tables"] > 10
    dealt = {share: {document.slice for document in some} for share, some in shares.items()}
    assert dealt == {key: {"code", "prose", "tables"} for key in dealt} | {"drafter": set()}


def test_no_share_holds_prose_of_another(shares):
    """As paragraphs of docstrings, in code too. The twin, a source beside its own docstrings, is found out."""

    @cache
    def told(document):
        return paragraphs(document.text if document.slice == "prose" else "\n\n".join(docstrings(document.text)))

    def shared(dealt):
        prose = {name: {p for d in some if d.slice == "prose" for p in told(d)} for name, some in dealt.items()}
        all_ = {name: {p for d in some for p in told(d)} for name, some in dealt.items()}
        return {(one, two) for one in prose for two in all_ if one != two and prose[one] & all_[two]}

    assert shared(shares) == set()
    whole = next(document for document in shares["test"] if document.slice == "prose")
    assert shared({**shares, "pair": [Document("x", whole.text, "prose")]}) != set()


def test_shares_do_not_depend_on_the_order_of_documents(documents, shares):
    turned = share_documents(documents[::-1], asdict(PAIR))
    assert {name: some[::-1] for name, some in turned.items()} == shares
    assert share_documents(documents[:50], {"b": 0.5, "a": 0.5}) != share_documents(
        documents[:50], {"a": 0.5, "b": 0.5}
    )


@pytest.mark.parametrize(
    ("number", "counts"),
    [
        (0, [0, 0, 0, 0]),
        (1, [1, 0, 0, 0]),
        (3, [1, 1, 1, 0]),
        (4, [1, 1, 1, 1]),
        (10, [5, 2, 2, 1]),
        (1000, [500, 200, 200, 100]),
    ],
)
def test_every_share_gets_a_document_where_there_are_enough(number, counts):
    some = [Document(str(index), str(index), "s") for index in range(number)]
    dealt = share_documents(some, {"train": 0.5, "validation": 0.2, "test": 0.2, "reserve": 0.1, "none": 0.0})
    assert [len(documents) for documents in dealt.values()] == [*counts, 0]


@pytest.mark.parametrize("change", [{"test": 0.3}, {"test": -0.1, "train": 0.7}])
def test_shares_that_do_not_sum_to_one_are_refused(change):
    with pytest.raises(ValueError, match="must not be negative and must sum to 1, got"):
        Shares(**{"train": 0.5, "validation": 0.2, "test": 0.1, "reserve": 0.2} | change)
