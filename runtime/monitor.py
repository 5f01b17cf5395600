"""One JSON line per request, for `draftwright drift`: what was drafted, accepted and forecast, no token of any text.

Counting takes 1 to 5 microseconds a round, and writing a line some 50 microseconds a request. Lines of several processes may
go to one file: each is one appending write, and begins a line of its own after one that was cut off. Beyond ``max_bytes`` the
file is renamed to ``….1``, the earlier ones move on, and at most ``keep`` of them stay. A request never fails for its record:
what cannot be written is lost, with one warning.
"""

import json
import os
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from predictors.monitoring import RequestCounts
from runtime.request import Request

if TYPE_CHECKING:
    from runtime.decoding.base import Step

STALE_SECONDS = 60  # after which the lock of a process that died while rotating is broken


class Monitor:
    """Writes records of what ``bundle``, a content hash, decodes; ``route`` names the decoder among several of its own."""

    def __init__(
        self, path: str | Path, bundle: str, route: str | None = None, max_bytes: int = 1 << 24, keep: int = 3
    ) -> None:
        if max_bytes < 1 or keep < 1:
            raise ValueError(f"max_bytes and keep must be >= 1, got {max_bytes} and {keep}.")
        self.path = Path(path)
        self.bundle, self.route = bundle, route
        self.max_bytes, self.keep = max_bytes, keep
        self._warned = False

    def watched(self, steps: Generator["Step", None, None], request: Request, depth: int) -> Iterator["Step"]:
        """Yield ``steps``; then write the request's record, also of one that was given up, whose ``steps`` are closed."""
        counts, prefilled = RequestCounts(request.max_new_tokens, depth), False
        try:
            with closing(steps):
                for step in steps:
                    if prefilled:
                        one = step.record
                        counts.add(one.emitted, one.submitted, one.accepted, one.forecasts, one.looked_up)
                    prefilled = True
                    yield step
        finally:
            if prefilled:
                self._write(request, counts)

    def _write(self, request: Request, counts: RequestCounts) -> None:
        where = {"time": round(time.time(), 3), "bundle": self.bundle, "route": self.route}
        try:
            asked = {"setting": request.sampling.name, "prompt_tokens": len(request.prompt)}
            line = json.dumps(where | asked | asdict(counts)) + "\n"
            if _appended(self.path, line.encode()) > self.max_bytes:
                self._rotate()
        except Exception as error:  # whatever it is, the request is worth more than its record
            if not self._warned:
                self._warned = True
                with suppress(Warning):  # no error even where warnings are made errors
                    warnings.warn(f"requests are decoded, but not recorded: {error}.", stacklevel=2)

    def _rotate(self) -> None:
        """Make room, unless another process does or did."""
        with suppress(FileNotFoundError), _lock(self.path.with_name(self.path.name + ".lock")) as held:
            if not held or self.path.stat().st_size <= self.max_bytes:
                return
            places = [self.path, *(self.path.with_name(f"{self.path.name}.{age + 1}") for age in range(self.keep))]
            for newer, older in reversed(list(pairwise(places))):
                if newer.exists():
                    newer.replace(older)


def _appended(path: Path, line: bytes) -> int:
    """Append in a single write, after a line that was cut off on a new one; return the file's size. A line that another
    process is just writing may look cut off: an empty line follows it, which readers pass over."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.fstat(descriptor).st_size:
            os.lseek(descriptor, -1, os.SEEK_END)
            line = line if os.read(descriptor, 1) == b"\n" else b"\n" + line
        if os.write(descriptor, line) < len(line):
            raise OSError(f"{path} took a part of a line only; is the disk full?")
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Try to take the lock file ``path``, without waiting; yield whether it is ours."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if abs(time.time() - path.stat().st_mtime) > STALE_SECONDS:  # a clock set back dates it ahead
            path.unlink(missing_ok=True)  # free for the next request
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
