"""What the draft model said at the newest tokens: a controller reads it, a pass for it alone would cost a draft step.

Rows are remembered as they are computed, wherever that was: in the pass that commits them, or while they were nodes of the last
tree. Shape suffixes: V vocabulary, K tapped layers, D hidden size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.adapter import Forward

Row = tuple[Tensor, Tensor | None]  # logits [V] and tapped hidden states [K, D]


class Views:
    """Logits and hidden states of the last two committed rows, and of the scratch rows that may follow them."""

    def __init__(self) -> None:
        self._committed: list[Row] = []
        self._scratch: list[Row] = []

    def committed(self, out: Forward) -> None:
        """Rows that were committed by a pass with the logits of at least the last two, or of all."""
        self._committed = [*self._committed, *rows_of(out)][-2:]

    def drafted(self, out: Forward) -> None:
        """Rows of scratch nodes, in the order in which they were fed."""
        self._scratch += rows_of(out)

    def keep(self, path: Sequence[int]) -> None:
        """Commit scratch rows ``path`` and drop the others."""
        self._committed = [*self._committed, *(self._scratch[place] for place in path)][-2:]
        self._scratch = []

    def newest(self) -> tuple[Tensor, Tensor | None]:
        """Logits [V] in front of the newest token, and tapped hidden states [2, K, D] in front of it and behind it."""
        (logits_V, before_KD), (_, behind_KD) = self._committed
        return logits_V, None if before_KD is None or behind_KD is None else torch.stack([before_KD, behind_KD])


def rows_of(out: Forward) -> list[Row]:
    """The rows of a pass that have logits."""
    if out.hidden_NKD is None:
        return [(logits_V, None) for logits_V in out.logits]
    return list(zip(out.logits, out.hidden_NKD[-len(out.logits) :], strict=True))
