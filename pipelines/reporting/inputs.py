"""What a report is made from: one device's part of a pair's data folder, and what a section of the report is."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipelines.device_profile import read_device_profile
from pipelines.reporting.measured_folder import Measured, read_measured
from predictors.latency import LatencyProfile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]


@dataclass(frozen=True)
class Inputs:
    """The ``data`` folder of a pair, the ``device`` whose results are read, and the bootstrap's ``replicates`` and ``seed``."""

    data: Path
    device: str
    replicates: int = 2000
    seed: int = 0

    @property
    def drawn(self) -> tuple[int, int]:
        return self.replicates, self.seed

    def of(self, stage: str) -> Path:
        """A stage's folder of this device."""
        return self.data / stage / self.device

    @cached_property
    def measured(self) -> Measured:
        return read_measured(self.of("measured"))

    @cached_property
    def profile(self) -> LatencyProfile | None:
        """``None`` where this device was not profiled."""
        folder = self.data / "latency"
        return read_device_profile(folder, self.device) if (folder / f"{self.device}.json").is_file() else None

    def fitted(self, family: str) -> dict[str, Record]:
        """What stage ``fit`` says of the predictors of a family, by name."""
        return read_fitted(self.data / "fit", family)


class Section:
    """A part of the report. ``quality`` holds no times, and goes with ``timing`` to the files of these names."""

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        """``None`` where nothing was measured."""
        raise NotImplementedError

    def quality(self) -> Record:
        return {}

    def timing(self) -> Record:
        return {}

    def figures(self, quality: Record, timing: Record) -> "dict[str, Figure]":
        """By name, from both records."""
        return {}

    @staticmethod
    def sentences(quality: Record, timing: Record) -> list[str]:
        """What both come to."""
        return []


def read_fitted(folder: Path, family: str) -> dict[str, Record]:
    """Records of stage ``fit`` in ``folder`` by predictor, of those that belong to ``family``."""
    found = {path.stem: read_record(path) for path in sorted(folder.glob("*.json"))}
    return {name: record for name, record in found.items() if record["family"] == family}


def read_record(path: Path) -> Record:
    """A JSON record.

    Raises
    ------
    ValueError
        If it is missing or damaged.
    """
    try:
        record: Record = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}). Run the stage that writes it again.") from error
    return record
