"""A finished benchmark of one device as the report reads it."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import (
    CHAIN,
    CONFIDENCE,
    FINDINGS,
    HF_ASSISTED,
    HF_FORWARD,
    HF_PLAIN,
    HRAD,
    MEASUREMENTS,
    PLAIN,
    PROVENANCE,
    REPLAYS,
    TEST,
)

ITEM = ["temperature", "prompt"]
COUNTED = ("rounds", "drafted", "levels", "accepted", "emitted", "rolled_back", "segments")
STATIC, CONFIDENCE_RULE = "static", "confidence"


@dataclass(frozen=True)
class Benchmark:
    """``runs`` of the test split, ``replays``, ``findings`` and ``origin`` (provenance)."""

    runs: pd.DataFrame
    replays: pd.DataFrame
    findings: dict[str, Any]
    origin: dict[str, Any]

    @property
    def temperatures(self) -> list[float]:
        return sorted(float(temperature) for temperature in self.runs["temperature"].unique())

    @property
    def arms(self) -> list[str]:
        """Arms in the order they are shown."""
        return sorted(self.runs["arm"].unique(), key=_place)

    @cached_property
    def items(self) -> pd.DataFrame:
        """One row per (arm, temperature, prompt): the fastest of its repeats."""
        fastest = self.runs.loc[self.runs.groupby(["arm", *ITEM])["seconds"].idxmin()]
        return fastest.set_index(["arm", *ITEM])[
            ["document", "slice", "prompt_tokens", "tokens", "seconds"]
        ].sort_index()

    @property
    def decodes(self) -> pd.DataFrame:
        """The items as studies of decodes name them: a row per ``split``, ``setting``, ``prompt`` and ``drafter``."""
        rows = self.items.reset_index().rename(columns={"arm": "drafter"})
        return rows.assign(split=TEST, setting=[f"T={temperature:g}" for temperature in rows["temperature"]])

    @property
    def first_repeat(self) -> pd.DataFrame:
        """One run of each (arm, temperature, prompt): repeats draw the same text, so counts are taken once."""
        return self.runs[self.runs["repeat"] == self.runs["repeat"].min()]

    def chosen(self, family: str, temperature: float) -> str:
        """The arm of ``family`` that was fastest on validation prompts."""
        for choice in self.findings["choices"]:
            if choice["family"] == family and choice["temperature"] == temperature:
                return str(choice["arm"])
        raise ValueError(
            f"the benchmark chose no {family} at temperature {temperature}. Run the benchmark stage again."
        )

    def choice(self, name: str, temperature: float) -> str:
        """``static`` and ``confidence`` stand for what was chosen on validation prompts; other names are arms."""
        return self.chosen(name, temperature) if name in (STATIC, CONFIDENCE_RULE) else name

    def times(self, name: str, temperatures: list[float] | None = None, slice_: str | None = None) -> pd.DataFrame:
        """Items of an arm or a choice, in the order shared by all arms."""
        parts = [self.items.loc[self.choice(name, t)].loc[[t]] for t in temperatures or self.temperatures]
        items = pd.concat(parts)
        return items if slice_ is None else items[items["slice"] == slice_]

    @property
    def controllers(self) -> list[str]:
        """What is compared with the best static setting."""
        return [CONFIDENCE_RULE, "entropy", *([HRAD] if HRAD in self.arms else [])]


def read_benchmark(folder: Path) -> Benchmark:
    """Read the folder of one device.

    Raises
    ------
    ValueError
        If it is missing or incomplete.
    """
    try:
        records = [json.loads((folder / name).read_text()) for name in (FINDINGS, PROVENANCE)]
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder} holds no finished benchmark ({error}). Run the benchmark stage.") from error
    runs = read_table(folder / MEASUREMENTS)
    runs = runs[runs["split"] == TEST].reset_index(drop=True)
    return Benchmark(runs, read_table(folder / REPLAYS), *records)


def _place(arm: str) -> tuple[int, float]:
    order = (PLAIN, HF_FORWARD, HF_PLAIN, HF_ASSISTED, CHAIN, CONFIDENCE, "entropy", HRAD, "length")
    family = next((index for index, prefix in enumerate(order) if arm.startswith(prefix)), len(order))
    _, _, number = arm.partition("-")
    return family, float(number) if number else 0.0


def read_table(path: Path) -> pd.DataFrame:
    """A table as a pandas frame.

    Raises
    ------
    ValueError
        If the file is missing or damaged.
    """
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}). Run the benchmark stage again.") from error
