"""Joules of a stretch of work: the board's power, as ``nvidia-smi`` reads it ten times a second, over the stretch."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean
from time import perf_counter

READ = ("--query-gpu=power.draw", "--format=csv,noheader,nounits", "--id=0", "-lms", "100")


@dataclass
class Energy:
    """``watts`` as read, and the ``seconds`` of the stretch; no joules where nothing could be read."""

    watts: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def joules(self) -> float | None:
        return mean(self.watts) * self.seconds if self.watts else None


@contextmanager
def measured_energy() -> Iterator[Energy]:
    """Read the first GPU's power within the block; blocks of a second and more have enough readings."""
    energy = Energy()
    command = shutil.which("nvidia-smi")
    if command is None:
        yield energy
        return
    reader = subprocess.Popen([command, *READ], stdout=subprocess.PIPE, text=True)
    start = perf_counter()
    try:
        yield energy
    finally:
        energy.seconds = perf_counter() - start
        reader.terminate()
        lines, _ = reader.communicate()
        energy.watts = [float(line) for line in lines.split() if line.replace(".", "", 1).isdigit()]
