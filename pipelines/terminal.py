"""What a command says on a terminal: at most `LINES` lines of `WIDTH` characters, or with ``--json`` the whole record."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from textwrap import shorten
from typing import Any

WIDTH, LINES = 110, 5
BYTE = re.compile("<0x[0-9A-F]{2}>")


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the full record as JSON and nothing else to stdout")


def count(text: str) -> int:
    """An argument: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


@contextmanager
def recording(wanted: bool) -> Iterator[Callable[[Any], None]]:
    """A function that prints a record as JSON if it is ``wanted``; whatever else is printed then goes to stderr."""
    stdout = sys.stdout
    with redirect_stdout(sys.stderr if wanted else stdout):
        yield lambda record: print(json.dumps(record, indent=2), file=stdout) if wanted else None


class GrowingText:
    """Prints the text of more and more tokens: every time the part that no later token changes, in the end all of it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._printed = ""

    def show(self, tokens: Sequence[int], last: bool = False) -> None:
        if not last:  # bytes in a row, of a tokenizer that falls back to them, are one text or none
            pieces = self._tokenizer.convert_ids_to_tokens(tokens)
            while pieces and BYTE.fullmatch(pieces[-1]):
                pieces.pop()
            tokens = tokens[: len(pieces)]
        text: str = self._tokenizer.decode(tokens)
        if not last:
            text = settled(text, bool(getattr(self._tokenizer, "clean_up_tokenization_spaces", False)))
        common = os.path.commonprefix([text, self._printed])  # noqa: RUF071 (all that was printed, or a decoder looks far ahead)
        if last or common == self._printed:
            print(text[len(common) :], end="", flush=True)
            self._printed = text


def settled(text: str, cleans: bool) -> str:
    """Return the part of ``text`` that later tokens leave: no character whose bytes are still to come nor, where a tokenizer
    ``cleans`` spaces in front of punctuation away, a space that may be one of those.

    Examples
    --------
    >>> settled("a b\ufffd", False), settled("a b '", True)
    ('a b', 'a b')
    """
    text = text.rstrip("\ufffd")
    space = text.find(" ", max(0, len(text) - len(" n't"))) if cleans else -1
    return text if space < 0 else text[:space]


def brief(lines: Sequence[str], most: int = LINES) -> str:
    """The ``lines``, shortened; of more than ``most``, the first ones and how many are left out."""
    if len(lines) > most:
        lines = [*lines[: most - 1], f"and {len(lines) - most + 1} more (--json)"]
    return "\n".join(shorten(line, WIDTH, placeholder=" …") for line in lines)
