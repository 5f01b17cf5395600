"""The decoding that a head is fitted for, and every decode of recorded texts by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from predictors.branch_settings import BranchSettings
from predictors.config import Count, one_of
from predictors.replay.branch_grid import BranchStarts
from predictors.replay.decode import Reading
from predictors.replay.grid import Starts
from predictors.replay.prices import Prices
from predictors.training.text_table import TextTable

CHAIN, BRANCHES = METHODS = ("chain", "branches")
HELD_OUT = ("validation", "test")
OWN = ("method", "concurrent")  # of `Decoding`, and no options of the decoder


@dataclass(frozen=True)
class Decoding(BranchSettings):
    """``method`` chain or branches, drafts of at most ``gamma`` tokens, verified by ``verifier``; ``concurrent``: priced side by
    side on this machine, else on the virtual clock."""

    method: Annotated[str, one_of(*METHODS)] = CHAIN
    gamma: Count = 12
    verifier: str = "block"
    concurrent: bool = False

    @property
    def decoder(self) -> dict[str, Any]:
        """The configuration of a bundle's decoder."""
        if self.method == CHAIN:
            chain = {"kind": "chain", "gamma": self.gamma}
            return {"method": "speculative", "drafter": chain, "verifier": self.verifier}
        options = {name: value for name, value in vars(self).items() if name not in OWN and value is not None}
        return {"preset": "specbranch", **options}


@dataclass(frozen=True)
class Decodes:
    """``starts`` of one split and setting, for chains or branch-parallel decoding, and the table's ``row_XS`` of each (of none
    after a text's end)."""

    starts: Starts | BranchStarts
    row_XS: np.ndarray

    @property
    def idle(self) -> Starts:
        """Where drafts are made with the target idle."""
        return self.starts.idle if isinstance(self.starts, BranchStarts) else self.starts

    @property
    def retained(self) -> Starts | None:
        """Where a branch survived the round before; chains have none."""
        return self.starts.retained if isinstance(self.starts, BranchStarts) else None

    @property
    def document_X(self) -> np.ndarray:
        """Each text's document."""
        return self.idle.document_X


def decodes_of(
    table: TextTable, decoding: Decoding, prices: Mapping[bool, Prices], repeats: int, seed: int
) -> dict[tuple[str, int], Decodes]:
    """By split and number of the setting; ``repeats`` of chance on held-out texts that are sampled, one on others."""
    found: dict[tuple[str, int], list[tuple[Reading, int]]] = {}
    row, split_R, setting_R = 0, table.column("split"), table.setting_N
    for text in table.texts():
        several = repeats if split_R[row] in HELD_OUT and not text.settings.greedy else 1
        key = str(split_R[row]), int(setting_R[row])
        found.setdefault(key, []).extend((Reading.of(text, seed + place), row) for place in range(several))
        row += text.length - 1
    made = {}
    for (split, setting), entries in found.items():
        readings, first_X = [reading for reading, _ in entries], np.array([first for _, first in entries])
        priced = prices[not table.settings[setting].greedy]
        starts: Starts | BranchStarts
        if decoding.method == CHAIN:
            starts = Starts.of(readings, decoding.gamma, decoding.verifier, priced)
        else:
            starts = BranchStarts.of(readings, decoding, decoding.verifier, priced, decoding.concurrent)
        rows_X = np.array([reading.text.length - 1 for reading in readings])
        row_XS = first_X[:, None] + np.minimum(np.arange(rows_X.max()), rows_X[:, None] - 1)
        made[split, setting] = Decodes(starts, row_XS)
    return made
