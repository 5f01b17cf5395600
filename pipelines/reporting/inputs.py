"""What a report is made from: one device's part of a pair's data folder."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.device_file import read_device_profile
from pipelines.evidence.timed_blocks import setting_of
from pipelines.measuring.names import CHAIN, CHOICES
from pipelines.outputs import read_json
from pipelines.promotion.names import VERDICT
from pipelines.reporting.comparison import Comparison
from pipelines.reporting.measured_folder import Measured, read_measured
from predictors.latency.profile import LatencyProfile

Record = dict[str, Any]


@dataclass(frozen=True)
class Inputs:
    """The ``data`` folder of a pair, and the ``device`` whose results are read."""

    data: Path
    device: str

    def of(self, stage: str) -> Path:
        """A stage's folder of this device."""
        return self.data / stage / self.device

    @cached_property
    def measured(self) -> Measured:
        """Its best static chain is that of tuning, where it was timed: few validation prompts by themselves choose by chance."""
        measured = read_measured(self.of("measured"))
        static = {setting: choice["static"] for setting, choice in self.tuned.items()}
        timed = {setting: measured.arms(setting) for setting in measured.settings}
        choices = [
            made | {"arm": static[setting]}
            if made["family"] == CHAIN and static.get(setting := setting_of(made)) in timed.get(setting, [])
            else made
            for made in measured.findings["choices"]
        ]
        return replace(measured, findings=measured.findings | {"choices": choices})

    @cached_property
    def comparison(self) -> Comparison:
        """All timed arms against each other."""
        return Comparison(self.measured)

    @cached_property
    def profile(self) -> LatencyProfile | None:
        """``None`` where this device was not profiled."""
        folder = self.data / "latency"
        return read_device_profile(folder, self.device) if (folder / f"{self.device}.json").is_file() else None

    @cached_property
    def tuned(self) -> dict[str, Record]:
        """What tuning chose, by sampling setting; none where nothing was tuned."""
        path = self.of("tuning") / CHOICES
        choices: list[Record] = read_json(path) if path.is_file() else []
        return {choice["setting"]: choice for choice in choices}

    @cached_property
    def verdicts(self) -> dict[str, Record]:
        """What the gate said, by bundle."""
        paths = sorted((self.data / "trials").glob(f"*/{self.device}/{VERDICT}"))
        return {path.parent.parent.name: read_json(path) for path in paths}

    def fitted(self, family: str) -> dict[str, Record]:
        """What stage ``fit`` says of the predictors of a family, by name."""
        found = {path.stem: read_json(path) for path in sorted((self.data / "fit").glob("*.json"))}
        return {name: record for name, record in found.items() if record["family"] == family}
