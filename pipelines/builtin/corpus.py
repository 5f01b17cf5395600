"""The built-in corpus: text that every Python installation carries, in three slices.

``code`` is the standard library without its tests. ``prose`` is the language reference behind ``help()``, and the docstrings of
files that consist of them for a large part, which are no code documents then. ``tables`` are the character map codecs. The text
depends on the Python version; `manifest_hash` pins it.

Documents of any kind are dealt out into `Shares` that have none in common.
"""

import ast
import hashlib
import math
import sysconfig
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

MIN_CHARACTERS = 500  # a document must have room for a prompt and its continuation
MIN_PROSE_CHARACTERS = 800
MANUAL_CHARACTERS, MANUAL_SHARE = 1500, 0.3  # of a source's docstrings, that make it prose
LEFT_OUT_FOLDERS = ("site-packages", "dist-packages", "lib-dynload", "__pycache__", "idle_test", "pydoc_data")
TABLE = "decoding_table = ("
SHORTEST_PARAGRAPH = 40  # characters; shorter ones, such as "Example:", may come again
USES = {"train": "fit", "validation": "choose between", "test": "score"}


@dataclass(frozen=True)
class Document:
    """A text with a name that is unique in its corpus; ``messages`` stands in for ``text`` in conversations, and holds one user's
    separate prompts where a source is of kind chat."""

    id: str
    text: str
    slice: str
    messages: tuple[dict[str, str], ...] = ()


@cache
def builtin_documents() -> tuple[Document, ...]:
    """The running interpreter's documents, sorted by id, each text once."""
    sources = list(_source_documents(Path(sysconfig.get_paths()["stdlib"])))
    written = {source.id: "\n\n".join(docstrings(source.text)) for source in sources if source.slice == "code"}
    least = {source.id: max(MANUAL_CHARACTERS, MANUAL_SHARE * len(source.text)) for source in sources}
    manuals = {id for id, text in written.items() if len(text) >= least[id]}
    seen = {paragraph for id, text in written.items() if id not in manuals for paragraph in paragraphs(text)}
    documents = [source for source in sources if source.id not in manuals]
    documents += _topics(seen)
    rest = _unseen(((id, written[id]) for id in sorted(manuals)), seen)
    documents += [Document(id, text, "prose") for id, text in rest if len(text) >= MIN_PROSE_CHARACTERS]
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
            start = text.index(TABLE)  # the same table stands there three times over
            text = text[start : text.index("\n)\n", start) + 3]
        if len(text) >= MIN_CHARACTERS:
            yield Document(id="/".join(parts), text=text, slice="tables" if is_table else "code")


def _topics(seen: set[str]) -> Iterable[Document]:
    """Topics of ``help()``, as `_unseen` leaves them; short ones are merged with the next."""
    from pydoc_data.topics import topics

    unique = dict(_unseen(sorted(topics.items(), key=lambda item: (len(item[1]), item[0])), seen))
    names: list[str] = []
    for name in sorted(unique):
        names.append(name)
        text = "\n\n".join(unique[n] for n in names)
        if len(text) >= MIN_PROSE_CHARACTERS:
            yield Document(id=f"topics/{names[0]}", text=text, slice="prose")
            names = []


def _unseen(texts: Iterable[tuple[str, str]], seen: set[str]) -> Iterable[tuple[str, str]]:
    """Names and texts, less the paragraphs in ``seen``, which they join."""
    for name, text in texts:
        yield name, without(text, seen)
        seen.update(paragraphs(text))


def docstrings(text: str) -> list[str]:
    """The docstrings of a Python source in their order, dedented; none where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes in other people's code
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (node.body[0].lineno, ast.get_docstring(node))
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body
    ]
    return [docstring for _, docstring in sorted((line, string) for line, string in found if string)]


def paragraphs(text: str) -> set[str]:
    """The paragraphs that are long enough to be told from others, without their line breaks."""
    plain = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return {paragraph for paragraph in plain if len(paragraph) >= SHORTEST_PARAGRAPH}


def without(text: str, seen: set[str]) -> str:
    """The text less the ``paragraphs`` in ``seen``."""
    return "\n\n".join(p for p in text.split("\n\n") if " ".join(p.split()) not in seen)


@dataclass(frozen=True)
class Shares:
    """What part of every slice's documents goes where; the parts sum to 1, and only ``reserve`` and what trains models may be 0:
    ``pair`` those of a built-in pair, ``drafter`` a drafter. The defaults are for a user's own pair. The fields' order decides
    which documents go where."""

    pair: float = 0.0
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


def builtin_shares(shares: Shares) -> dict[str, list[Document]]:
    """The running interpreter's documents by share; only those of ``pair`` train the models."""
    return share_documents(builtin_documents(), asdict(shares))
