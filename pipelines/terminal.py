"""What a command says on a terminal: at most `LINES` lines of `WIDTH` characters, or with ``--json`` the whole record."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from textwrap import shorten
from typing import Any

WIDTH, LINES = 110, 5


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


def brief(lines: Sequence[str], most: int = LINES) -> str:
    """The ``lines``, shortened; of more than ``most``, the first ones and how many are left out."""
    if len(lines) > most:
        lines = [*lines[: most - 1], f"and {len(lines) - most + 1} more (--json)"]
    return "\n".join(shorten(line, WIDTH, placeholder=" …") for line in lines)
