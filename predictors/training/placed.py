"""What tables of traces share whose rows lie somewhere in a prompt's continuation (`PLACE_COLUMNS`)."""

from functools import cached_property
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa

from predictors.sampling import SamplingSettings
from predictors.training.trace_table import Manifest

Kind = TypeVar("Kind", bound=Manifest)


class PlacedTable(Generic[Kind]):
    """Rows of some splits, in the order of the shards. ``hint``: what helps where a split has none."""

    hint: ClassVar[str]

    def __init__(self, manifest: Kind, table: pa.Table) -> None:
        self.manifest = manifest
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def rows(self, split: str) -> Self:
        """The rows of one split; `ValueError` if there are none."""
        part = self.table.filter(pa.array(self.column("split") == split))
        if not part.num_rows:
            raise ValueError(f"there are no traces of split {split!r}. {self.hint}")
        return type(self)(self.manifest, part)

    def column(self, name: str) -> np.ndarray:
        """A scalar column."""
        return np.asarray(self.table.column(name).to_numpy(zero_copy_only=False))

    @cached_property
    def settings(self) -> list[SamplingSettings]:
        """The sampling settings, ascending."""
        return [SamplingSettings(*numbers) for numbers in sorted(set(self._setting_rows))]

    @cached_property
    def setting_N(self) -> np.ndarray:
        """Place of every row's setting in ``settings``."""
        places = {(item.temperature, item.top_k, item.top_p): place for place, item in enumerate(self.settings)}
        return np.array([places[numbers] for numbers in self._setting_rows])

    @cached_property
    def _setting_rows(self) -> list[tuple[float, int, float]]:
        columns = (self.column(name).tolist() for name in ("temperature", "top_k", "top_p"))
        return [(round(t, 6), int(k), round(p, 6)) for t, k, p in zip(*columns, strict=True)]
