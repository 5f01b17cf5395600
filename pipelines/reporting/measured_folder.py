"""A finished measurement of one device as reports read it: its tables, and what else was found.

Blocks are incomplete: not every arm was timed on every prompt. `pipelines.reporting.comparison` compares arms where both were.
"""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.evidence.timed_blocks import setting_of
from pipelines.measuring import names
from pipelines.measuring.provenance import of_target_alone
from pipelines.measuring.tables import DECODES, LOOP, ROUNDS, read_table
from pipelines.outputs import read_json
from predictors.sampling import SamplingSettings

KEY = ["setting", "prompt", "repeat"]  # of a block of one split
SAMPLING = ("temperature", "top_k", "top_p")
MAIN_FAMILIES = (
    *(names.PLAIN_FAMILY, names.HUGGING_FACE, names.LEARNED),
    *(names.CHAIN, names.CONFIDENCE, names.LOOKUP, names.TAKEOVER),
)
MAIN_ARMS = (names.ENTROPY, names.HRAD, names.LENGTH)
ORDER = (  # of arms and families where they are shown
    *(names.PLAIN, names.HF_FORWARD, names.HF_PLAIN, names.HF_ASSISTED, names.HF_LOOKUP),
    *(names.CHAIN, names.CONFIDENCE, *MAIN_ARMS),
)


@dataclass(frozen=True)
class Measured:
    """``decodes`` of test and validation prompts, their ``rounds``, ``findings``, ``origin`` (provenance); ``loop``: seconds in
    the loop and of its passes alone."""

    decodes: pd.DataFrame
    rounds: pd.DataFrame
    findings: dict[str, Any]
    origin: dict[str, Any]
    loop: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def test(self) -> pd.DataFrame:
        """Decodes of test prompts, each with the name of its sampling ``setting``."""
        return with_settings(self.decodes[self.decodes["split"] == names.TEST].reset_index(drop=True))

    @cached_property
    def settings(self) -> list[str]:
        """Names of the sampling settings, by temperature."""
        return sorted(self.test["setting"].unique())

    @cached_property
    def slices(self) -> list[str]:
        """Of the test prompts, by name."""
        return sorted(self.test["slice"].unique())

    @staticmethod
    def greedy(setting: str) -> bool:
        """Whether texts at a setting are greedy."""
        return setting.split(",")[0] == SamplingSettings(0.0).name

    @cached_property
    def families(self) -> dict[str, str]:
        """The family of every arm that was timed on test prompts, in the order arms are shown."""
        arms = self.test[["arm", "family"]].drop_duplicates()
        return dict(sorted(arms.itertuples(index=False, name=None), key=_place))

    def arms(self, setting: str) -> list[str]:
        """Arms that were timed at a sampling setting, in the order they are shown."""
        timed = set(self.test.loc[self.test["setting"] == setting, "arm"])
        return [arm for arm in self.families if arm in timed]

    @property
    def main(self) -> "Measured":
        """Without arms that have a section of their own, and choices of them: what the report's first tables show. Of a target
        alone these have what it drafts for itself."""
        families = self.families.items()
        shown = {names.CALIBRATED, *MAIN_FAMILIES} if of_target_alone(self.origin) else MAIN_FAMILIES
        kept = {arm for arm, family in families if family in shown or arm in MAIN_ARMS} - {names.HF_LOOKUP}
        choices = [choice for choice in self.findings["choices"] if choice["arm"] in kept]
        decodes, rounds = (table[table["arm"].isin(kept)] for table in (self.decodes, self.rounds))
        return replace(self, decodes=decodes, rounds=rounds, findings={**self.findings, "choices": choices})

    def choices(self, setting: str) -> dict[str, str]:
        """By family the arm that was fastest on validation prompts."""
        return {one["family"]: one["arm"] for one in self.findings["choices"] if setting_of(one) == setting}

    def chosen(self, family: str, setting: str) -> str:
        """The arm of ``family`` that was fastest on validation prompts."""
        choices = self.choices(setting)
        if family not in choices:
            raise ValueError(f"no arm of family {family!r} was chosen at {setting}. Run the measure stage again.")
        return choices[family]

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
        """By arm, whether its greedy text in `exact_format` is Hugging Face's."""
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
    timed_loop = (folder / names.LOOP_FILE).is_file()
    loop = read_table(folder / names.LOOP_FILE, LOOP).to_pandas() if timed_loop else pd.DataFrame()
    return Measured(decodes, rounds, findings, origin, loop)


def with_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """``rows`` with column ``setting``."""
    if "setting" in rows:
        return rows
    places = rows[[*SAMPLING]].itertuples(index=False, name=None)
    return rows.assign(setting=[setting_of(dict(zip(SAMPLING, place, strict=True))) for place in places])


def _place(arm: tuple[str, str]) -> tuple[int, float]:
    """Plain decoding first, then rivals, then families as they were timed; numbered arms by their number."""
    name, family = arm
    place = next((place for place, known in enumerate(ORDER) if known in (name, family)), len(ORDER))
    number = re.search(r"-(\d+(?:\.\d+)?)$", name)
    return place, float(number[1]) if number and family in (names.CHAIN, names.CONFIDENCE) else 0.0
