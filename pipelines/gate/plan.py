"""The plan of a trial, fixed before anything is measured: sections ``trial`` and ``promotion`` of the parameters.

A bundle has one trial on test documents and, where that was inconclusive, one on these and the reserve together: of many trials
on the same documents one would pass by chance. Those that were made are the gate's records on a version (`Champions.verdicts`).
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pipelines.gate.verdict import INCONCLUSIVE, REFUSED
from pipelines.parameters import load_parameters
from predictors.config import Checked, Count, NotNegative, above, at_least, below, not_empty

Record = dict[str, Any]


@dataclass(frozen=True)
class TrialConfig(Checked):
    """Section ``trial``."""

    gammas: Annotated[tuple[Count, ...], not_empty] = (2, 3, 4, 6, 8)  # lengths of the static chains
    test_prompts: Count = 30  # timed, of every slice as many as its share of the documents
    reserve_prompts: Count = 30  # further ones, for a trial after an inconclusive one
    repeats: Count = 1
    exactness_prompts: Count = 2  # whose greedy texts are compared
    max_new_tokens: Annotated[int, at_least(2)] = 48  # a prefill and a round
    threads: Count = 2
    seed: int = 0


@dataclass(frozen=True)
class Bounds(Checked):
    """Section ``promotion``: what the gate asks."""

    margin: NotNegative = 0.0  # a gain's lower bound must lie above it, over every rival
    alpha: Annotated[float, above(0), below(0.5)] = 0.025  # one-sided error of a trial
    promised: float = 0.05  # the true gain that the gate promises to pass, and in which share of cases
    power: Annotated[float, at_least(0.5), below(1)] = 0.8
    guardrail: NotNegative = 0.05  # the most that a sampling setting or a slice may lose
    slice_documents: Annotated[int, at_least(2)] = 8  # a slice with fewer documents is not judged
    calibration_error: NotNegative = 0.08  # the largest that passes
    min_documents: Count = 8  # below which nothing passes

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.promised > self.margin:
            raise ValueError(f"promised must lie above margin ({self.margin}), got {self.promised}.")


def load_plan(pair: str, path: Path) -> tuple[TrialConfig, Bounds]:
    """Both sections of a pair."""
    return load_parameters(TrialConfig, pair, "trial", path), load_parameters(Bounds, pair, "promotion", path)


def trials_among(records: list[Record]) -> list[Record]:
    """Records for which something was measured."""
    return [record for record in records if record["smallest_gain"] is not None]


def reserve_opens(earlier: list[Record], name: str, version: str) -> bool:
    """Tell whether the next trial, after the kept verdicts, is that on the reserve, too. `ValueError` if there is none to
    come."""
    trials = trials_among(earlier)
    last = trials[-1]["verdict"] if trials else None
    if last == REFUSED or len(trials) > 1:
        why = "was refused" if last == REFUSED else "had both its trials, on test documents and on the reserve"
        raise ValueError(
            f"{name} version {version} {why}: one more would pass by chance. Register another bundle, or promote this one with "
            "--force."
        )
    return last == INCONCLUSIVE


def require_new(record: Record, earlier: list[Record]) -> None:
    """`ValueError` for a second trial on the same documents: only the first one counts."""
    for kept in trials_among(earlier):
        same = kept["documents_sha256"] == record["documents_sha256"]
        if same and kept["evidence_sha256"] != record["evidence_sha256"]:
            raise ValueError(
                f"this bundle was tried on these documents already ({kept['verdict']}). Of many trials one passes by chance: "
                "after an inconclusive one, leave --evidence out for a trial with the reserve."
            )


def require_same_bounds(bounds: Bounds, earlier: list[Record]) -> None:
    """`ValueError` if an earlier trial was judged by other bounds."""
    here = json.loads(json.dumps(asdict(bounds)))
    for kept in trials_among(earlier):
        for key, value in kept["bounds"].items():
            if here.get(key) != value:
                raise ValueError(
                    f"promotion.{key} was {value} at the last trial, and is {here.get(key)} now: bounds are fixed before "
                    "anything is measured. Put it back, register another bundle, or say --force."
                )
