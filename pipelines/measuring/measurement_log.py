"""A long measurement in blocks, each measured once and logged, so that an interrupted one goes on where it stopped.

A block is a JSON line. The first line is a fingerprint of everything the measurement depends on. A log with another fingerprint
is discarded whole: its blocks are never mixed with new ones.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

Rows = list[dict[str, Any]]


class MeasurementLog:
    """The log at ``path``; ``resumed`` counts the blocks an earlier run left."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path = path
        self._blocks = _kept(path, fingerprint)
        self.resumed = len(self._blocks)
        path.parent.mkdir(parents=True, exist_ok=True)
        records = [{"fingerprint": fingerprint}, *({"key": key, "rows": rows} for key, rows in self._blocks.items())]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))

    def __contains__(self, key: str) -> bool:
        return key in self._blocks

    def once(self, key: str, measure: Callable[[], Rows]) -> Rows:
        """The rows of block ``key``: those of an earlier run, or measured now and kept."""
        if key not in self._blocks:
            rows = measure()
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "rows": rows}) + "\n")
            self._blocks[key] = rows
        return self._blocks[key]

    def remove(self) -> None:
        """Forget everything: the measurement is complete and written elsewhere."""
        self.path.unlink()


def _kept(path: Path, fingerprint: str) -> dict[str, Rows]:
    """Blocks of all lines but a last one that was cut off while it was written; none of another fingerprint."""
    lines = path.read_text().split("\n") if path.is_file() else []
    header, *blocks = [json.loads(line) for line in lines[:-1] if line] or [{}]
    return {one["key"]: one["rows"] for one in blocks} if header.get("fingerprint") == fingerprint else {}


@dataclass
class Blocks:
    """Blocks of a ``log``. ``bar`` counts steps, of which a block has some."""

    log: MeasurementLog
    bar: tqdm

    def planned(self, steps: int) -> None:
        """So many more are at hand: the bar's total grows where it was less."""
        self.bar.total = max(self.bar.total or 0, self.bar.n + steps)

    def once(self, key: str, steps: int, measure: Callable[[], Rows]) -> Rows:
        """Rows of block ``key``. ``measure`` moves the bar itself; a block that an earlier run left moves it by ``steps``."""
        known = key in self.log
        rows = self.log.once(key, measure)
        self.bar.update(steps if known else 0)
        return rows
