"""How documents are dealt out."""

import pytest

from pipelines.shares import Document, Shares, share_documents

PARTS = {"train": 0.5, "validation": 0.2, "test": 0.2, "reserve": 0.1, "none": 0.0}


def numbered(count: int) -> list[Document]:
    return [Document(str(index), str(index), "s") for index in range(count)]


def test_shares_do_not_depend_on_the_order_of_documents():
    some = numbered(50)
    shares, turned = share_documents(some, PARTS), share_documents(some[::-1], PARTS)
    assert {name: those[::-1] for name, those in turned.items()} == shares
    assert share_documents(some, dict(reversed(PARTS.items()))) != shares, "on that of the shares"


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
    dealt = share_documents(numbered(number), PARTS)
    assert [len(documents) for documents in dealt.values()] == [*counts, 0]


@pytest.mark.parametrize("change", [{"test": 0.3}, {"test": -0.1, "train": 0.7}])
def test_shares_that_do_not_sum_to_one_are_refused(change):
    with pytest.raises(ValueError, match="must not be negative and must sum to 1, got"):
        Shares(**{"train": 0.5, "validation": 0.2, "test": 0.1, "reserve": 0.2} | change)
