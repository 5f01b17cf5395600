"""One loader for every source of documents; a source is data, not code.

    kind: builtin                        the corpus of the built-in pair (`pipelines.builtin.corpus`)
    kind: file       path: …             a .jsonl, .parquet or .txt file, or a folder of those (a .txt file is one document)
    kind: datasets   path: …             any Hugging Face datasets name or folder, with config and split

Rows become documents through one of ``column`` (a text), ``template`` (``str.format`` over the row's fields) or ``messages``
(a column of role/content mappings).
"""

import itertools
import json
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm

from pipelines.builtin.corpus import Document, builtin_documents
from pipelines.edits import KINDS as KINDS_OF_EDIT
from predictors.config import Checked, one_of

KINDS = ("builtin", "file", "datasets")
SUFFIXES = (".jsonl", ".parquet", ".txt")


@dataclass(frozen=True)
class Source(Checked):
    """Recipe for one source of documents.

    ``chat`` wraps a text as a user's message in the tokenizer's chat template. ``cut`` is ``window`` (prompts are windows of a
    longer text) or ``whole`` (a document is a prompt); by default windows are cut from the built-in corpus only. ``edits``
    names slices that prompts of slice `edit` are made of, too, and whether they hold ``code`` or ``prose`` (`pipelines.edits`).
    """

    kind: Annotated[str, one_of(*KINDS)]
    name: str
    path: str | None = None
    config: str | None = None
    split: str = "train"
    column: str | None = None
    template: str | None = None
    messages: str | None = None
    slice: str | None = None
    slice_column: str | None = None
    chat: bool = False
    cut: Annotated[str, one_of("window", "whole")] | None = None
    limit: int | None = None
    edits: Mapping[str, Annotated[str, one_of(*KINDS_OF_EDIT)]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cut == "window" and (self.chat or self.messages):
            raise ValueError("windows cannot be cut from conversations: use cut: whole.")
        if self.edits and (self.chat or self.messages):
            raise ValueError("edits cannot be made of conversations: leave 'edits' out.")
        if self.slice and self.slice_column:
            raise ValueError("give 'slice' or 'slice_column', not both.")
        if (self.path is None) != (self.kind == "builtin"):
            raise ValueError("'path' belongs to the kinds file and datasets.")
        num_fields = sum(field is not None for field in (self.column, self.template, self.messages))
        if num_fields > (0 if self.kind == "builtin" else 1):
            raise ValueError("give at most one of 'column', 'template' and 'messages' (none with kind: builtin).")

    @property
    def windows(self) -> bool:
        """Whether prompts are windows of the documents."""
        return self.cut == "window" or (self.cut is None and self.kind == "builtin" and not self.chat)


def load_documents(source: Source) -> list[Document]:
    """All documents of a source, the first of those that say the same.

    Raises
    ------
    ValueError
        For a column that is not there (listing those that are), or no document but empty ones, which are left out and counted.
    FileNotFoundError
        For a missing file.
    """
    empty: list[Document] = []
    documents = list(itertools.islice(_filled(_documents(source), empty), source.limit))
    if not documents:
        raise ValueError(f"source {source.name!r} has no documents{f' but {len(empty)} empty ones' if empty else ''}.")
    if empty:
        print(f"{source.name}: {len(empty)} empty documents left out")
    first = {repr((document.text, document.messages)): document for document in reversed(documents)}
    if len(first) < len(documents):
        print(f"{source.name}: {len(documents) - len(first)} repeated documents left out, or splits would share them")
    return [document for document in documents if first[repr((document.text, document.messages))] is document]


def _filled(documents: Iterable[Document], empty: list[Document]) -> Iterator[Document]:
    """Those that say something; the others go to ``empty``. `ValueError` for what no tokenizer takes."""
    for document in documents:
        if not document.text.strip() and not document.messages:
            empty.append(document)
            continue
        try:
            "".join([document.text, *(str(message["content"]) for message in document.messages)]).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"document {document.id!r} holds a lone surrogate, no character ({error}).") from error
        yield document


def _documents(source: Source) -> Iterator[Document]:
    if source.kind == "builtin":
        for document in builtin_documents():
            yield document if source.slice is None else Document(document.id, document.text, source.slice)
        return
    for row_name, row in tqdm(_rows(source), desc=f"read {source.name}", unit="row", mininterval=1.0, leave=False):
        yield _document(source, f"{source.name}/{row_name}", row)


def _rows(source: Source) -> Iterator[tuple[str, Mapping[str, Any]]]:
    assert source.path is not None
    if source.kind == "file":
        for path in _files(Path(source.path).expanduser()):
            for index, row in enumerate(_file_rows(path)):
                yield (path.name if path.suffix == ".txt" else f"{path.name}:{index}"), row
    else:
        yield from ((str(index), row) for index, row in enumerate(_dataset(source)))


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"document file or folder {path} does not exist.")
    files = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files or any(file.suffix not in SUFFIXES for file in files):
        raise ValueError(f"{path}: expected {', '.join(SUFFIXES)} or a folder with such files.")
    return files


def _file_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    if path.suffix == ".txt":
        return [{"text": path.read_text(encoding="utf-8")}]
    if path.suffix == ".jsonl":
        return _json_rows(path)
    import pyarrow.parquet

    return (row for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024) for row in batch.to_pylist())


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: no valid JSON ({error}).") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: expected a JSON object, got {line.decode().strip()[:40]!r}.")
            yield row


def _dataset(source: Source) -> Iterable[Mapping[str, Any]]:
    import datasets

    try:
        return datasets.load_dataset(source.path, source.config, split=source.split)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"source {source.name!r}: dataset {source.path!r} could not be loaded: {reason}") from error


def _document(source: Source, id: str, row: Mapping[str, Any]) -> Document:
    slice = source.slice or source.name
    if source.slice_column is not None:
        slice = str(_field(source, row, source.slice_column))
    if source.messages is not None:
        return Document(id, "", slice, _messages(id, _field(source, row, source.messages)))
    if source.template is not None:
        fields = {name: _field(source, row, name) for name in _template_fields(source.template)}
        return Document(id, source.template.format(**fields), slice)
    value = _field(source, row, source.column or "text")
    if not isinstance(value, str):
        raise ValueError(f"document {id!r}: column {source.column or 'text'!r} holds {value!r}, not a text.")
    return Document(id, value, slice)


def _template_fields(template: str) -> set[str]:
    names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    return {name.split(".")[0].split("[")[0] for name in names}


def _field(source: Source, row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        raise ValueError(f"source {source.name!r} has no column {column!r}. Columns there: {', '.join(row)}.")
    return row[column]


def _messages(id: str, value: Any) -> tuple[dict[str, str], ...]:
    valid = isinstance(value, list) and all(isinstance(m, Mapping) and {"role", "content"} <= m.keys() for m in value)
    if not valid or not value:
        raise ValueError(f"document {id!r}: expected a list of messages with role and content, got {value!r}.")
    messages = [{"role": message["role"], "content": message["content"]} for message in value]
    while messages and messages[-1]["role"] == "assistant":  # the answer is the model's to give
        messages.pop()
    return tuple(messages)
