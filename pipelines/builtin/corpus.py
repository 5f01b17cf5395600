"""The built-in corpus: text that every Python installation carries, in three slices.

``code`` is the standard library without its tests, ``prose`` the language reference behind ``help()``, ``tables`` the character
map codecs. The text depends on the Python version; `manifest_hash` pins it.
"""

import hashlib
import math
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MIN_CHARACTERS = 500  # a document must have room for a prompt and its continuation
MIN_PROSE_CHARACTERS = 1500
LEFT_OUT_FOLDERS = ("site-packages", "dist-packages", "lib-dynload", "__pycache__", "idle_test", "pydoc_data")


@dataclass(frozen=True)
class Document:
    """A text with a name that is unique in its corpus; ``messages`` stands in for ``text`` in conversations."""

    id: str
    text: str
    slice: str
    messages: tuple[dict[str, str], ...] = ()


def builtin_documents() -> list[Document]:
    """The running interpreter's documents, sorted by id, each text once."""
    documents = [*_source_documents(Path(sysconfig.get_paths()["stdlib"])), *_prose_documents()]
    unique = {content_hash(document): document for document in sorted(documents, key=lambda d: d.id, reverse=True)}
    return sorted(unique.values(), key=lambda document: document.id)


def split_documents(
    documents: Sequence[Document], share: float, minimum: int = 10
) -> tuple[list[Document], list[Document]]:
    """Hold out a share of the documents of every slice, chosen by the hash of their ids.

    Parameters
    ----------
    share
        At least this share of each slice is held out, up to half of it.
    minimum
        At least so many documents of each slice are held out, where a quarter of the slice is that many.

    Returns
    -------
    rest, held_out
        Both in the order of ``documents``; no document is in both.
    """
    if not 0 <= share < 1:
        raise ValueError(f"the share of documents to hold out must lie in [0, 1), got {share}.")
    held_out: set[str] = set()
    for name in {document.slice for document in documents}:
        ids = sorted((d.id for d in documents if d.slice == name), key=lambda id: hashlib.sha256(id.encode()).digest())
        count = max(math.ceil(share * len(ids)), min(minimum, len(ids) // 4)) if share else 0
        held_out.update(ids[: min(count, len(ids) // 2)])
    return [d for d in documents if d.id not in held_out], [d for d in documents if d.id in held_out]


def content_hash(document: Document) -> str:
    """SHA-256 of the document's text."""
    return hashlib.sha256(document.text.encode()).hexdigest()


def manifest_hash(splits: dict[str, Sequence[Document]]) -> str:
    """SHA-256 over (split, id, content hash) of all documents: the identity of a corpus and its split."""
    lines = sorted(f"{split} {d.id} {content_hash(d)}" for split, documents in splits.items() for d in documents)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _source_documents(library: Path) -> Iterable[Document]:
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if any(part in LEFT_OUT_FOLDERS or part.startswith("test") for part in parts[:-1]):
            continue
        if path.name.startswith("_sysconfigdata"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        is_table = parts[0] == "encodings" and "decoding_table" in text
        if is_table and "decoding_map" in text:
            continue  # the same table three times over; with these a sixth of the corpus would be tables
        if len(text) >= MIN_CHARACTERS:
            yield Document(id="/".join(parts), text=text, slice="tables" if is_table else "code")


def _prose_documents() -> Iterable[Document]:
    """Topics of ``help()``; short ones are merged with the next, and a paragraph that two topics share is kept once."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    unique = {}
    for name in sorted(topics, key=lambda name: (len(topics[name]), name)):
        paragraphs = [p for p in topics[name].split("\n\n") if len(p) < 40 or p not in seen]
        seen.update(paragraphs)
        unique[name] = "\n\n".join(paragraphs)
    names: list[str] = []
    for name in sorted(unique):
        names.append(name)
        text = "\n\n".join(unique[n] for n in names)
        if len(text) >= MIN_PROSE_CHARACTERS:
            yield Document(id=f"topics/{names[0]}", text=text, slice="prose")
            names = []


@dataclass(frozen=True)
class BuiltinCorpus:
    """The built-in documents with their split."""

    train: Sequence[Document]
    test: Sequence[Document]

    @classmethod
    def load(cls, held_out: float) -> "BuiltinCorpus":
        """The running interpreter's documents, the share ``held_out`` of them as ``test``."""
        return cls(*split_documents(builtin_documents(), held_out))

    @property
    def manifest(self) -> str:
        """Hash of every document's id, content and split."""
        return manifest_hash({"train": self.train, "test": self.test})

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of documents by split and slice."""
        counts: dict[str, dict[str, int]] = {}
        for split, documents in (("train", self.train), ("test", self.test)):
            for document in documents:
                by_slice = counts.setdefault(split, {})
                by_slice[document.slice] = by_slice.get(document.slice, 0) + 1
        return counts
