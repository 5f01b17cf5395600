"""A key-value cache of one request: committed tokens, then scratch nodes.

Buffers grow by doubling and are written in place. Committing a path gathers its rows behind the committed ones; committing a
straight prefix of the scratch moves nothing. Shapes: [1, heads, length, head_dim].
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin


class ScratchLayer(CacheLayerMixin):
    """One layer's keys and values. ``length`` counts the rows in use."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = key_states.new_empty(*key_states.shape[:2], self.capacity, key_states.shape[3])
        self.values = value_states.new_empty(*value_states.shape[:2], self.capacity, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[2]
        if self.length > self.capacity:
            self._grow(start)
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def keep(self, committed: int, scratch_rows: Sequence[int]) -> None:
        """Move ``scratch_rows`` (ascending, counted from ``committed``) behind the committed rows and drop the rest."""
        self.length = committed + len(scratch_rows)
        if list(scratch_rows) == list(range(len(scratch_rows))):
            return
        rows = torch.tensor(scratch_rows, device=self.keys.device) + committed
        self.keys[:, :, committed : self.length] = self.keys[:, :, rows]
        self.values[:, :, committed : self.length] = self.values[:, :, rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def _grow(self, used: int) -> None:
        old_keys, old_values = self.keys, self.values
        self.capacity = max(self.length, 2 * self.capacity)
        self.lazy_initialization(old_keys, old_values)
        self.keys[:, :, :used] = old_keys[:, :, :used]
        self.values[:, :, :used] = old_values[:, :, :used]
