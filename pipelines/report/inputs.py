"""What a report is made from: one device's part of a pair's data folder, in it a finished measurement."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.gate.verdict import VERDICT
from pipelines.measuring import names
from pipelines.measuring.gain import setting_of
from pipelines.measuring.provenance import of_target_alone
from pipelines.measuring.tables import DECODES, ROUNDS, read_table
from pipelines.outputs import read_json
from pipelines.places import read_device_profile
from pipelines.report.comparison import MAIN_ARMS, TimedArms
from predictors.latency.profile import LatencyProfile

Record = dict[str, Any]
MAIN_FAMILIES = (
    *(names.PLAIN_FAMILY, names.HUGGING_FACE, names.LEARNED),
    *(names.CHAIN, names.CONFIDENCE, names.ENTROPY, names.LOOKUP, names.TAKEOVER, names.SELECTOR),
)


@dataclass(frozen=True)
class Measured(TimedArms):
    """A finished measurement: its ``rounds`` and ``origin`` (provenance), too."""

    rounds: pd.DataFrame
    origin: Record

    @property
    def main(self) -> "Measured":
        """The measurement without arms that have a section of their own, and choices of them: what the report's first tables
        show. Of a target alone these have what it drafts for itself."""
        families = {names.CALIBRATED, *MAIN_FAMILIES} if of_target_alone(self.origin) else MAIN_FAMILIES
        shown = {arm for arm, family in self.families.items() if family in families or arm in MAIN_ARMS}
        kept = shown - {names.HF_LOOKUP}
        choices = [choice for choice in self.findings["choices"] if choice["arm"] in kept]
        decodes, rounds = (rows[rows["arm"].isin(kept)] for rows in (self.decodes, self.rounds))
        return replace(self, decodes=decodes, rounds=rounds, findings={**self.findings, "choices": choices})

    @cached_property
    def counted(self) -> pd.DataFrame:
        """Decodes of test prompts, each text once: repeats write the same one at temperature 0 and from the same seed."""
        ordered = self.test.sort_values("repeat", kind="stable")
        text = ["arm", "setting", "prompt"]
        again = ordered.duplicated([*text, "seed"]) | (ordered["temperature"] == 0) & ordered.duplicated(text)
        return ordered[~again].sort_index()

    @property
    def exact_format(self) -> str:
        """The number format that greedy texts were compared in."""
        return str(self.findings.get("exact_format", "float32"))

    @property
    def exactness(self) -> dict[str, bool]:
        """Exactness by arm: whether its greedy text in `exact_format` is Hugging Face's."""
        return {row["arm"]: bool(row[f"exact_{self.exact_format}"]) for row in self.findings["exactness"]}


def read_measured(folder: Path) -> Measured:
    """Read the folder of one device.

    Raises
    ------
    ValueError
        If it is missing, incomplete or of another version.
    """
    remedy = f"{folder} holds no finished measurement. Run the measure stage."
    findings, origin = (read_json(folder / name, remedy) for name in (names.FINDINGS, names.PROVENANCE))
    decodes, rounds = (
        read_table(folder / name, schema).to_pandas()
        for name, schema in ((names.DECODES_FILE, DECODES), (names.ROUNDS_FILE, ROUNDS))
    )
    return Measured(decodes, findings, rounds, origin)


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

    def fitted(self, family: str) -> dict[str, Record]:
        """Read the records of stage ``fit`` on the predictors of a family, by name."""
        found = {path.stem: read_json(path) for path in sorted((self.data / "fit").glob("*.json"))}
        return {name: record for name, record in found.items() if record["family"] == family}
