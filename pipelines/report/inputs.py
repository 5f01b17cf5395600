"""What a report is made from: one device's part of a pair's data folder, in it a finished measurement."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.gate.verdict import VERDICT
from pipelines.measuring import names
from pipelines.measuring.gain import setting_of
from pipelines.measuring.tables import DECODES, read_table
from pipelines.outputs import read_json
from pipelines.places import read_device_profile
from pipelines.report.comparison import TimedArms
from predictors.latency.profile import LatencyProfile

Record = dict[str, Any]


@dataclass(frozen=True)
class Measured(TimedArms):
    """A finished measurement, with its ``origin`` (provenance)."""

    origin: Record

    @property
    def exact_format(self) -> str:
        """The number format that greedy texts were compared in."""
        return str(self.findings.get("exact_format", "float32"))

    @property
    def exactness(self) -> dict[str, bool]:
        """Exactness by arm: whether its greedy text in `exact_format` is Hugging Face's."""
        return {row["arm"]: bool(row[f"exact_{self.exact_format}"]) for row in self.findings["exactness"]}


def read_measured(folder: Path) -> Measured:
    """Read the folder of one device; `ValueError` if it is missing, incomplete or of another version."""
    remedy = f"{folder} holds no finished measurement. Run the measure stage."
    findings, origin = (read_json(folder / name, remedy) for name in (names.FINDINGS, names.PROVENANCE))
    return Measured(read_table(folder / names.DECODES_FILE, DECODES).to_pandas(), findings, origin)


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
        """The measurement, whose best static chain is that of tuning, where it was timed: few validation prompts by themselves
        choose by chance."""
        measured = read_measured(self.of("measured"))
        choices = []
        for made in measured.findings["choices"]:
            setting = setting_of(made)
            static = self.tuned.get(setting, {}).get("static")
            of_tuning = made["family"] == names.CHAIN and static in measured.arms(setting)
            choices.append(made | {"arm": static} if of_tuning else made)
        return replace(measured, findings=measured.findings | {"choices": choices})

    @cached_property
    def profile(self) -> LatencyProfile | None:
        """``None`` where this device was not profiled."""
        folder = self.data / "latency"
        return read_device_profile(folder, self.device) if (folder / f"{self.device}.json").is_file() else None

    @cached_property
    def tuned(self) -> dict[str, Record]:
        """Tuning's choices, by sampling setting; none where nothing was tuned."""
        path = self.of("tuning") / names.CHOICES
        choices: list[Record] = read_json(path, kind=list) if path.is_file() else []
        return {choice["setting"]: choice for choice in choices}

    @cached_property
    def verdicts(self) -> dict[str, Record]:
        """The gate's verdicts, by bundle."""
        paths = sorted((self.data / "trials").glob(f"*/{self.device}/{VERDICT}"))
        return {path.parent.parent.name: read_json(path) for path in paths}

    @cached_property
    def fitted(self) -> dict[str, Record]:
        """Records of stage ``fit``, by predictor."""
        return {path.stem: read_json(path) for path in sorted((self.data / "fit").glob("*.json"))}
