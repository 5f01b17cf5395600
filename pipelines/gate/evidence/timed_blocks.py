"""Timed decodes by arm and block. A block is one prompt, setting and repeat whose arms were timed interleaved in one go.

Shape suffixes: A arms, B blocks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictors.sampling import SamplingSettings

Row = Mapping[str, Any]


def setting_of(row: Row) -> str:
    """Name of the sampling setting of a row, or of a choice."""
    if row.get("setting"):
        return str(row["setting"])
    return SamplingSettings(row["temperature"], int(row.get("top_k") or 0), row.get("top_p") or 1.0).name


@dataclass(frozen=True)
class TimedBlocks:
    """``tokens_AB`` and ``seconds_AB`` are NaN where an arm was not timed in a block. Arms by name give their row."""

    arms: dict[str, int]
    families: dict[str, str]
    blocks: tuple[str, ...]
    prompt_B: np.ndarray
    document_B: np.ndarray
    slice_B: np.ndarray
    setting_B: np.ndarray
    tokens_AB: np.ndarray
    seconds_AB: np.ndarray

    @staticmethod
    def of(rows: Iterable[Row]) -> "TimedBlocks":
        """From rows of decodes. `ValueError` without rows, for an arm twice in one block, or for a decode without tokens or
        time."""
        rows = list(rows)
        if not rows:
            raise ValueError("there are no decodes to compare. Measure first.")
        first = {row["block"]: row for row in reversed(rows)}
        blocks, arms = tuple(sorted(first)), sorted({row["arm"] for row in rows})
        row_of, column = ({name: place for place, name in enumerate(names)} for names in (arms, blocks))
        tokens, seconds = np.full((2, len(arms), len(blocks)), np.nan)
        for row in rows:
            place = row_of[row["arm"]], column[row["block"]]
            if not np.isnan(tokens[place]):
                raise ValueError(
                    f"arm {row['arm']!r} stands twice in block {row['block']!r}. Give repeats other blocks."
                )
            if not (row["tokens"] > 0 and row["seconds"] > 0):
                raise ValueError(
                    f"arm {row['arm']!r} has {row['tokens']} tokens in {row['seconds']} s in block {row['block']!r}. "
                    "Time it again."
                )
            tokens[place], seconds[place] = row["tokens"], row["seconds"]
        where = [first[block] for block in blocks]
        prompts, documents, slices = (
            np.array([str(row[name]) for row in where]) for name in ("prompt", "document", "slice")
        )
        settings = np.array([setting_of(row) for row in where])
        families = {row["arm"]: str(row.get("family", row["arm"])) for row in rows}
        return TimedBlocks(row_of, families, blocks, prompts, documents, slices, settings, tokens, seconds)

    def shared(self, *arms: str) -> np.ndarray:
        """By block [B]: whether all ``arms`` were timed in it; `ValueError` for an unknown one."""
        for name in arms:
            if name not in self.arms:
                raise ValueError(f"arm {name!r} was not timed. Timed: {', '.join(self.arms)}.")
        return ~np.isnan(self.tokens_AB[[self.arms[name] for name in arms]]).any(axis=0)
