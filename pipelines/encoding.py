"""Texts as bytes, of files and of standard input: in UTF-8, or in UTF-16 where a mark says so. Anything else is refused."""

import codecs
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

UTF8 = "Save it in UTF-8 (iconv --from-code ITS_ENCODING --to-code UTF-8), and not compressed."
POINTER = b"version https://git-lfs.github.com"


def decoded(file: IO[bytes], where: str) -> str:
    """A text with plain line ends; `ValueError`, which begins with ``where``, for another encoding."""
    try:
        text = b"".join(utf8_lines(file)).decode("utf-8-sig")
    except UnicodeError as error:
        raise ValueError(f"{where}: no text in UTF-8 ({error}). {UTF8}") from error
    return io.StringIO(text, newline=None).read()


def read_text(path: Path) -> str:
    """As `decoded`."""
    with path.open("rb") as file:
        return decoded(file, str(path))


def utf8_lines(file: IO[bytes]) -> Iterable[bytes]:
    """Of a text, in UTF-8; `UnicodeError` where its first line tells another encoding, or that it is no text."""
    lines: Iterator[bytes] = iter(file)
    first = next(lines, b"")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        lines = io.BytesIO(b"".join([first, *lines]).decode("utf-16").encode())
        first = next(lines, b"")
    if b"\0" in first:
        raise UnicodeError("it holds NUL characters, as UTF-32 does, and UTF-16 without its mark")
    if first.startswith(POINTER):
        raise UnicodeError("it is a pointer of Git LFS: git lfs pull fetches the file")
    return itertools.chain([first], lines)
