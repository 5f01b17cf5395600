"""The built-in corpus: text that every Python installation carries, in three slices.

``code`` is the standard library without its tests. ``prose`` is the language reference behind ``help()``, and the docstrings of
files that consist of them for a large part, which are no code documents then. ``tables`` are the character map codecs. The text
depends on the Python version; `manifest_hash` pins it.
"""

import hashlib
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipelines.builtin.docstrings import docstrings, paragraphs, without
from pipelines.shares import Shares

MIN_CHARACTERS = 500  # a document must have room for a prompt and its continuation
MIN_PROSE_CHARACTERS = 800
MANUAL_CHARACTERS, MANUAL_SHARE = 1500, 0.3  # of a source's docstrings, that make it prose
LEFT_OUT_FOLDERS = ("site-packages", "dist-packages", "lib-dynload", "__pycache__", "idle_test", "pydoc_data")
TABLE = "decoding_table = ("


@dataclass(frozen=True)
class Document:
    """A text with a name that is unique in its corpus; ``messages`` stands in for ``text`` in conversations."""

    id: str
    text: str
    slice: str
    messages: tuple[dict[str, str], ...] = ()


@cache
def builtin_documents() -> tuple[Document, ...]:
    """The running interpreter's documents, sorted by id, each text once."""
    sources = list(_source_documents(Path(sysconfig.get_paths()["stdlib"])))
    written = {source.id: "\n\n".join(docstrings(source.text)) for source in sources if source.slice == "code"}
    manuals = {source.id for source in sources if _is_manual(source, written.get(source.id, ""))}
    seen = {paragraph for id, text in written.items() if id not in manuals for paragraph in paragraphs(text)}
    documents = [source for source in sources if source.id not in manuals]
    documents += [*_topics(seen), *_manuals({id: written[id] for id in sorted(manuals)}, seen)]
    unique = {content_hash(document): document for document in sorted(documents, key=lambda d: d.id, reverse=True)}
    return tuple(sorted(unique.values(), key=lambda document: document.id))


def content_hash(document: Document) -> str:
    """SHA-256 of the document's text."""
    return hashlib.sha256(document.text.encode()).hexdigest()


def manifest_hash(shares: Mapping[str, Sequence[Document]]) -> str:
    """SHA-256 over (share, id, content hash) of all documents: the identity of a corpus and of its shares."""
    lines = sorted(f"{share} {d.id} {content_hash(d)}" for share, documents in shares.items() for d in documents)
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
            text = _table(text)  # the same table stands there three times over
        if len(text) >= MIN_CHARACTERS:
            yield Document(id="/".join(parts), text=text, slice="tables" if is_table else "code")


def _table(text: str) -> str:
    start = text.index(TABLE)
    return text[start : text.index("\n)\n", start) + 3]


def _is_manual(source: Document, docstrings: str) -> bool:
    return len(docstrings) >= max(MANUAL_CHARACTERS, MANUAL_SHARE * len(source.text))


def _topics(seen: set[str]) -> Iterable[Document]:
    """Topics of ``help()``; short ones are merged with the next. Paragraphs in ``seen`` are left out, and join it."""
    from pydoc_data.topics import topics

    unique = {}
    for name in sorted(topics, key=lambda name: (len(topics[name]), name)):
        unique[name] = without(topics[name], seen)
        seen.update(paragraphs(topics[name]))
    names: list[str] = []
    for name in sorted(unique):
        names.append(name)
        text = "\n\n".join(unique[n] for n in names)
        if len(text) >= MIN_PROSE_CHARACTERS:
            yield Document(id=f"topics/{names[0]}", text=text, slice="prose")
            names = []


def _manuals(texts: Mapping[str, str], seen: set[str]) -> Iterable[Document]:
    """Docstrings by id, less the paragraphs in ``seen``, which they join; what is too short then is left out."""
    for id, text in texts.items():
        rest = without(text, seen)
        seen.update(paragraphs(text))
        if len(rest) >= MIN_PROSE_CHARACTERS:
            yield Document(id, rest, "prose")


def builtin_shares(shares: Shares) -> dict[str, list[Document]]:
    """The running interpreter's documents by share; only those of ``pair`` train the models."""
    return shares.deal(builtin_documents())
