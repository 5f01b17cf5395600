"""Documents, dealt out into `Shares` that have none in common."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

USES = {"train": "fit", "validation": "choose between", "test": "score"}


@dataclass(frozen=True)
class Document:
    """A text with a name that is unique in its source; ``messages`` stands in for ``text`` in conversations, and holds one user's
    separate prompts where a source is of kind chat."""

    id: str
    text: str
    slice: str
    messages: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Shares:
    """Parts of every slice's documents by where they go; the parts sum to 1, and only ``drafter`` and ``reserve`` may be 0. The
    fields' order decides which documents go where."""

    drafter: float = 0.0
    train: float = 0.45
    validation: float = 0.2
    test: float = 0.25
    reserve: float = 0.1

    def __post_init__(self) -> None:
        values = asdict(self)
        if min(values.values()) < 0 or not math.isclose(sum(values.values()), 1, abs_tol=1e-6):
            raise ValueError(f"shares must not be negative and must sum to 1, got {values}: change one of them.")
        for name, use in USES.items():
            if not values[name]:
                raise ValueError(f"shares.{name} is 0, and no document would be left to {use} controllers: raise it.")


def share_documents(documents: Sequence[Document], shares: Mapping[str, float]) -> dict[str, list[Document]]:
    """Deal the ``documents`` of every slice out, by the hash of their ids: those of each share, in their order.

    ``shares`` are parts of a slice, which sum to 1; the names' order decides which hashes go where, that of the documents does
    not. A share above 0 has a document of every slice that has as many documents as there are such shares.
    """
    share_of: dict[str, str] = {}
    for slice_ in {document.slice for document in documents}:
        ids = sorted(
            (d.id for d in documents if d.slice == slice_), key=lambda id: hashlib.sha256(id.encode()).digest()
        )
        dealt = iter(ids)
        for name, count in _counts(len(ids), shares).items():
            share_of.update((next(dealt), name) for _ in range(count))
    return {name: [document for document in documents if share_of[document.id] == name] for name in shares}


def _counts(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers near ``share * total`` that sum to ``total``: each document goes to the share that lacks most."""
    wanted = {name: share * total for name, share in shares.items() if share > 0}
    counts = dict.fromkeys(wanted, 1 if total >= len(wanted) else 0)
    for _ in range(total - sum(counts.values())):
        counts[max(wanted, key=lambda name: wanted[name] - counts[name])] += 1
    return counts
