"""One loader for every source of documents; a source is data, not code.

    kind: chat                           chat prompts by rule, without any file (`pipelines.chat_prompts`)
    kind: file       path: …             a .jsonl, .parquet or .txt file (one document), or its URL, or a folder of those
    kind: datasets   path: …             any Hugging Face datasets name or folder, with config, split and revision
    recipe: …                            one of `recipes.yaml`, whose fields a source may replace

Rows become documents through one of ``column`` (a text), ``template`` (``str.format`` over the row's fields), ``messages``
(a column of role/content mappings) or ``turns`` (a column of a user's messages, in their order).
"""

import itertools
import json
import os
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Annotated, Any

import fsspec
import pyarrow as pa
from pyarrow.parquet import ParquetFile
from tqdm import tqdm

from pipelines.chat_prompts import chat_documents
from pipelines.outputs import UTF8, decoded, utf8_lines
from pipelines.prompt_table import SPLITS
from pipelines.recipes import TEXTS, chat_template, completed
from pipelines.shares import Document
from predictors.config import Checked, Count, one_of

KINDS = ("chat", "file", "datasets")
SUFFIXES = (".jsonl", ".parquet", ".txt")
CALLS = ("tool_calls", "function_call", "tool_call_id")  # what most chat templates leave out silently
LINES = "Write one object on each line (jq --compact-output . FILE)."
ROLES = dict.fromkeys(("assistant", "model", "gpt", "bot"), "assistant") | {"human": "user"}  # as sources name them


@dataclass(frozen=True)
class Source(Checked):
    """One source of documents, as the module describes; of ``recipe`` are the fields that it leaves out.

    A later one of ``turns`` is a prompt only where column ``answers`` has one to all before it. Rows are read where
    each column of ``where`` has one of the values there. ``slices``: other names for values of ``slice_column``.
    ``chat`` wraps a text as a user's message in the chat template, ``system`` stands before a conversation, and
    ``chat_template``, a name in `recipes.yaml` or a template, replaces the tokenizer's. ``cut``: ``window`` (prompts
    are windows of a longer text) or ``whole`` (a document is a prompt, and so is each turn of a conversation from
    ``turns``). ``shares``: splits that its documents go to, by default all; whole sources are kept apart by it.
    """

    kind: Annotated[str, one_of(*KINDS)]
    name: str
    recipe: str | None = None
    path: str | None = None
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    column: str | None = None
    template: str | None = None
    messages: str | None = None
    turns: str | None = None
    answers: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    slice: str | None = None
    slice_column: str | None = None
    slices: Mapping[str, str] = field(default_factory=dict)
    chat: bool = False
    system: str | None = None
    chat_template: str | None = None
    cut: Annotated[str, one_of("window", "whole")] = "whole"
    limit: Count | None = None
    shares: tuple[Annotated[str, one_of(*SPLITS)], ...] = SPLITS

    def __post_init__(self) -> None:
        super().__post_init__()
        by_rule, texts = self.kind == "chat", sum(getattr(self, text) is not None for text in TEXTS)
        most = 0 if by_rule else 1
        silent = (self.system or self.chat_template) and not self.converses
        rules = [
            (self.cut == "window" and self.converses, "windows cannot be cut from conversations: use cut: whole."),
            (silent, "'system' and 'chat_template' belong to conversations: give 'chat', 'messages' or 'turns'."),
            (self.answers and not self.turns, "'answers' belong to 'turns': name the column of what they answer, too."),
            (self.revision and self.kind != "datasets", "'revision' belongs to the kind datasets: leave it out."),
            (not self.shares, f"shares must name at least one of {', '.join(SPLITS)}, or be left out."),
            (self.where and by_rule, "'where' belongs to the kinds file and datasets: leave it out."),
            (self.slice and self.slice_column, "give 'slice' or 'slice_column', not both."),
            (self.slices and not self.slice_column, "'slices' belong to 'slice_column': name the column they rename."),
            ((self.path is None) != by_rule, "'path' belongs to the kinds file and datasets."),
            (texts > most, f"give at most one of {', '.join(map(repr, TEXTS))} (none with kind: {self.kind})."),
        ]
        for broken, message in rules:
            if broken:
                raise ValueError(message)
        chat_template(self.chat_template)
        for column, values in self.where.items():
            if not isinstance(values, list | tuple):
                raise ValueError(f"where[{column}] must be a list of values, got {values!r}.")

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return completed(values)

    @property
    def converses(self) -> bool:
        """Whether prompts are conversations in a chat template."""
        return bool(self.chat or self.messages or self.turns or self.kind == "chat")


def load_documents(source: Source, seed: int = 0) -> list[Document]:
    """All documents of a source, the first of those that say the same; ``seed`` of prompts that are made by rule.

    `ValueError` for a column that is not there (listing those that are), a text that no tokenizer takes, or no document but empty
    ones, which are left out and counted. `FileNotFoundError` for a missing file.
    """
    documents: list[Document] = []
    empty = 0
    for document in _documents(source, seed):
        if not document.text.strip() and not document.messages:
            empty += 1
            continue
        try:
            "".join([document.text, *(str(message["content"]) for message in document.messages)]).encode()
        except UnicodeEncodeError as error:  # which no tokenizer takes
            raise ValueError(f"document {document.id!r} holds a lone surrogate, no character ({error}).") from error
        documents.append(document)
        if len(documents) == source.limit:
            break
    if not documents:
        where = f" where {source.where}" if source.where else ""
        raise ValueError(
            f"source {source.name!r} has no documents{where}{f' but {empty} empty ones' if empty else ''}."
        )
    if empty:
        print(f"{source.name}: {empty} empty documents left out")
    first = {repr((document.text, document.messages)): document for document in reversed(documents)}
    if len(first) < len(documents):
        print(f"{source.name}: {len(documents) - len(first)} repeated documents left out, or splits would share them")
    return [document for document in documents if first[repr((document.text, document.messages))] is document]


def _documents(source: Source, seed: int) -> Iterator[Document]:
    if source.kind == "chat":
        yield from (replace(document, slice=source.slice or document.slice) for document in chat_documents(seed))
        return
    for row_name, row in tqdm(_rows(source), desc=f"read {source.name}", unit="row", mininterval=1.0, leave=False):
        if all(_field(source, row, column) in values for column, values in source.where.items()):
            yield _document(source, f"{source.name}/{row_name}", row)


def _rows(source: Source) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Of files or of a dataset, with what tells them apart."""
    assert source.path is not None
    if source.kind == "datasets":
        import datasets

        try:
            found = datasets.load_dataset(source.path, source.config, split=source.split, revision=source.revision)
            if (read := _columns(source)) <= set(found.column_names):  # others may be pictures or sounds
                found = found.select_columns(sorted(read))
            yield from ((str(index), row) for index, row in enumerate(found))
        except (ImportError, OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise ValueError(f"source {source.name!r}: dataset {source.path!r} cannot be loaded: {reason}") from error
        return
    for path in _files(source.path):
        name, suffix = Path(path).name, Path(path).suffix
        with _opened(path) as file:
            try:
                if suffix == ".txt":
                    yield name, {"text": decoded(file, path)}
                    continue
                rows = _json_rows(path, utf8_lines(file)) if suffix == ".jsonl" else _parquet_rows(path, file)
                yield from ((f"{name}:{index}", row) for index, row in enumerate(rows))
            except UnicodeError as error:
                raise ValueError(f"{path}: no text in UTF-8 ({error}). {UTF8}") from error


def _parquet_rows(path: str, file: IO[bytes]) -> Iterator[Mapping[str, Any]]:
    try:
        for batch in ParquetFile(file).iter_batches(1024):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error}). Download it, or write it, again.") from error


def _files(named: str) -> list[str]:
    path = Path(os.path.expanduser(named))
    if "://" in named:
        files = [named]
    elif not path.exists():
        raise FileNotFoundError(f"document file or folder {path} does not exist.")
    else:
        found = (
            [one for one in path.rglob("*") if one.suffix in SUFFIXES and one.is_file()] if path.is_dir() else [path]
        )
        hidden = [one for one in found if any(part[0] == "." for part in one.relative_to(path).parts)]
        files = sorted(str(one) for one in found if one not in hidden)  # what editors and systems leave there
    if not files or any(Path(file).suffix not in SUFFIXES for file in files):
        raise ValueError(f"{path}: expected {', '.join(SUFFIXES)} or a folder with such files.")
    return files


def _opened(path: str) -> IO[bytes]:
    if "://" not in path:
        return open(path, "rb")
    try:
        file: IO[bytes] = fsspec.open(path, "rb").open()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} could not be read ({error}): download it, and name the file as 'path'.") from error
    return file


def _json_rows(path: str, lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8-sig").strip()
            row = json.loads(text) if text else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: no valid JSON ({error}). {LINES} {UTF8}") from error
        if not text:
            continue
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {text[:40]!r}.")
        yield row


def _document(source: Source, id: str, row: Mapping[str, Any]) -> Document:
    slice = source.slice or source.name
    if source.slice_column is not None:
        slice = str(_field(source, row, source.slice_column))
        slice = source.slices.get(slice, slice)
    if source.messages is not None:
        return Document(id, "", slice, _messages(id, _field(source, row, source.messages)))
    if source.turns is not None:
        answers = _field(source, row, source.answers) if source.answers else None
        return Document(id, "", slice, _conversation(id, _field(source, row, source.turns), answers))
    if source.template is not None:
        fields = {name: _field(source, row, name) for name in _template_fields(source.template)}
        try:
            if None in fields.values():
                raise TypeError(f"null in {fields}")
            return Document(id, source.template.format(**fields), slice)
        except (LookupError, AttributeError, TypeError) as error:
            raise ValueError(f"document {id!r} does not fit the template {source.template!r}: {error!r}.") from error
    value = _field(source, row, source.column or "text")
    if not isinstance(value, str):
        raise ValueError(f"document {id!r}: column {source.column or 'text'!r} holds {value!r}, not a text.")
    return Document(id, value, slice)


def _columns(source: Source) -> set[str]:
    """Those of a row that are read."""
    texts = {*filter(None, [source.column, source.messages, source.turns]), *_template_fields(source.template or "")}
    return {*(texts or {"text"}), *source.where, *filter(None, [source.answers, source.slice_column])}


def _template_fields(template: str) -> set[str]:
    return {re.split(r"[.[]", name)[0] for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def _field(source: Source, row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        raise ValueError(f"source {source.name!r}: a row has no column {column!r}, only {', '.join(row) or 'none'}.")
    return row[column]


def _messages(id: str, value: Any) -> tuple[dict[str, str], ...]:
    valid = isinstance(value, list) and all(isinstance(m, Mapping) and {"role", "content"} <= m.keys() for m in value)
    if not valid or not value:
        raise ValueError(f"document {id!r}: expected a list of messages with role and content, got {value!r}.")
    messages = [dict(one, role=ROLES.get(str(one["role"]).lower(), one["role"])) for one in value]
    while messages and messages[-1]["role"] == "assistant":  # the answer is the model's to give
        messages.pop()
    return tuple({"role": message["role"], "content": _content(id, message)} for message in messages)


def _content(id: str, message: Mapping[str, Any]) -> str:
    """The text of a message, or of its parts together; `ValueError` for what a prompt of text cannot say."""
    content = message["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if any(map(message.get, CALLS)) or not all(isinstance(text, str) for text in (message["role"], *texts)):
        remedy = "Leave the document out, or rewrite it."
        raise ValueError(f"document {id!r}: {str(message)[:200]} is no message of text. {remedy}")
    return "".join(map(str, texts))


def _conversation(id: str, turns: Any, answers: Any) -> tuple[dict[str, str], ...]:
    """The turns up to the first without an answer, with the answers between them."""
    for texts in (turns, answers):
        if not isinstance(texts, list | None) or not all(isinstance(text, str) for text in texts or ()):
            raise ValueError(f"document {id!r}: expected a list of texts, got {texts!r}.")
    messages: list[dict[str, str]] = []
    for turn, answer in zip(turns or (), itertools.chain(answers or (), itertools.repeat("")), strict=False):
        messages += {"role": "user", "content": turn}, {"role": "assistant", "content": answer}
        if not answer:
            break
    return tuple(messages[:-1])  # the last answer is the model's to give
