"""Prompts of slice ``edit``: a passage, a line that says how it is revised, and the revised copy begun.

    code     one or two identifiers renamed throughout, or a run of entries sorted
    prose    a run of entries, such as a list's, sorted; or the last sentence first

Refactoring and retrieval ask for such texts: most of what comes next stands in the prompt already. A revision follows from its
passage and its line alone (`revised`).
"""

import builtins
import keyword
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pipelines.prompt_table import SPLITS
from predictors.config import Checked, Count, Whole

KINDS = ("code", "prose")
TRIES = 24  # places of a document where a passage may begin, for each prompt wanted
MIN_BEGUN = 6  # tokens of the revised copy that stand in a prompt
MIN_USES, MIN_ENTRIES, MIN_SENTENCES = 3, 4, 3

IDENTIFIER = re.compile(r"(?<![\w.])[A-Za-z_]\w{2,}(?=\(|\[|\.\w|\s*=)")  # whose use says it is no word of a comment
RESERVED = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"self", "cls"}
ENTRY = re.compile(r"\s*(\S.*,|[*-] \S.*)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
RENAMED = re.compile(r"(\w+) renamed to (\w+)")
SORTED, REVERSED = "The same with its entries sorted:", "The same, its last sentence first:"

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class EditParameters(Checked):
    """Section ``prompts.edit``: number of prompts by split, tokens of a passage, and prompts of one document at most."""

    train: Whole = 0
    validation: Whole = 0
    test: Whole = 0
    reserve: Whole = 0
    min_tokens: Count = 90
    max_tokens: int = 160
    per_document: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"need min_tokens <= max_tokens, got {self.min_tokens} and {self.max_tokens}.")

    @property
    def total(self) -> int:
        """Prompts of all splits."""
        return sum(getattr(self, split) for split in SPLITS)


@dataclass(frozen=True)
class Edit:
    """``passage`` and its ``revision``, each ended by a line break, with the ``request`` between them."""

    passage: str
    request: str
    revision: str

    @property
    def text(self) -> str:
        """The prompt with the whole revised copy."""
        return f"{self.passage}\n{self.request}\n\n{self.revision}"


def revised(passage: str, request: str) -> str:
    """The passage as the ``request`` wants it."""
    if SORTED in request:
        runs = _runs(passage.splitlines(keepends=True))
        return "".join(line for run in runs for line in (sorted(run) if len(run) >= MIN_ENTRIES else run))
    if REVERSED in request:
        return "\n".join(reversed(_sentences(passage))) + "\n"
    names = dict(RENAMED.findall(request))
    return re.sub(r"\b(" + "|".join(map(re.escape, names)) + r")\b", lambda match: names[match[0]], passage)


def edits_of(
    text: str, kind: str, parameters: EditParameters, encode: Encode, generator: random.Random
) -> Iterator[Edit]:
    """Edits of disjoint passages, whole lines of ``text`` of one of `KINDS`, at places in random order; ``encode`` gives token
    ids of a text, without what the tokenizer puts before every text."""
    lines = text.splitlines(keepends=True)
    used: set[int] = set()
    starts = [index for index, line in enumerate(lines) if line.strip()]
    for start in generator.sample(starts, min(len(starts), TRIES * parameters.per_document)):
        length = generator.randint(parameters.min_tokens, parameters.max_tokens)
        stop = _stop(lines, start, length, parameters, encode)
        if stop is None or used & set(range(start, stop)):
            continue
        edit = _edit("".join(lines[start:stop]), text, kind, generator)
        if edit is not None:
            used |= set(range(start, stop))
            yield edit


def begun(edit: Edit, room: int, encode: Encode, generator: random.Random) -> list[int] | None:
    """Token ids of the edit, cut in the first half of its revised copy, at least ``room`` tokens before the end; ``None``: the
    copy is too short for that."""
    copy = len(encode(edit.revision))
    fewest, most = max(room, copy - copy // 2), copy - MIN_BEGUN
    if fewest > most:
        return None
    tokens = list(encode(edit.text))
    return tokens[: len(tokens) - generator.randint(fewest, most)]


def _stop(lines: Sequence[str], start: int, length: int, parameters: EditParameters, encode: Encode) -> int | None:
    """Behind the lines from ``start`` on that have ``length`` tokens, the last one not blank; ``None``: there are no such."""
    for stop in range(start + 1, len(lines) + 1):
        tokens = len(encode("".join(lines[start:stop])))
        if tokens > parameters.max_tokens:
            return None
        if tokens >= length and lines[stop - 1].strip() and lines[stop - 1].endswith("\n"):
            return stop
    return None


def _edit(passage: str, text: str, kind: str, generator: random.Random) -> Edit | None:
    """By the first rule in random order that changes the passage."""
    entries = any(len(run) >= MIN_ENTRIES for run in _runs(passage.splitlines(keepends=True)))
    rules: list[Callable[[], str | None]] = [lambda: SORTED if entries else None]
    if kind == "code":
        rules.append(lambda: _renaming(passage, text, generator))
    else:
        rules.append(lambda: REVERSED if len(_sentences(passage)) >= MIN_SENTENCES else None)
    generator.shuffle(rules)
    mark = "# " if kind == "code" else ""
    for request in filter(None, (rule() for rule in rules)):
        revision = revised(passage, request)
        if revision != passage:
            return Edit(passage, mark + request, revision)
    return None


def _renaming(passage: str, text: str, generator: random.Random) -> str | None:
    """New names, of other places in ``text``, for one or two identifiers of the passage."""
    words = Counter(re.findall(r"\w+", passage))
    attributes = set(re.findall(r"\.(\w+)", passage))  # of things that are defined elsewhere
    old = sorted(name for name in _names(passage) - attributes if words[name] >= MIN_USES)
    new = sorted(_names(text) - words.keys())
    count = min(len(old), len(new), 2)
    if not count:
        return None
    pairs = zip(generator.sample(old, count), generator.sample(new, count), strict=True)
    return "The same with " + " and ".join(f"{one} renamed to {other}" for one, other in pairs) + ":"


def _names(text: str) -> set[str]:
    return {name for name in IDENTIFIER.findall(text) if name not in RESERVED and not name.startswith("__")}


def _runs(lines: Sequence[str]) -> list[list[str]]:
    """The lines in their order: those that are entries at one indentation together, any other by itself."""

    def kind(number: int) -> int:
        line = lines[number]
        return len(line) - len(line.lstrip()) if ENTRY.fullmatch(line.rstrip("\n")) else -1 - number

    return [[lines[number] for number in run] for _, run in groupby(range(len(lines)), kind)]


def _sentences(passage: str) -> list[str]:
    return [sentence.strip() for sentence in SENTENCE_END.split(passage) if sentence.strip()]
