"""The shapes that are measured: Llamas of 1, 7 and 13 billion parameters, and drafts of a chosen share of a target's cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipelines.builtin.inflation import InflatedShape

DRAFT_WIDTH = InflatedShape(hidden=2048, layers=1, heads=16, kv_heads=16, head_dim=128, feed_forward=5632)


@dataclass(frozen=True)
class Sized:
    """A shape and its vocabulary; embedding and head are one matrix."""

    shape: InflatedShape
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Weights that a pass reads: every matrix once, the shared one as the head."""
        return self.vocabulary * self.shape.hidden + self.shape.layers * self.shape.layer_weights

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Sized":
        return cls(InflatedShape(**record["shape"]), record["vocabulary"])


SHAPES = {
    "1b": Sized(InflatedShape(2048, 16, 32, 8, 64, 8192), 128256),
    "7b": Sized(InflatedShape(4096, 32, 32, 32, 128, 11008), 32000),
    "13b": Sized(InflatedShape(5120, 40, 40, 40, 128, 13824), 32000),
    "tiny": Sized(InflatedShape(256, 4, 4, 4, 64, 704), 2048),  # for tests, and for machines without a GPU
}
LEAST = InflatedShape(1024, 8, 16, 16, 64, 1408)  # that holds the trained pair under any vocabulary


def draft_shape(target: Sized, ratio: float, width: InflatedShape, least_layers: int) -> Sized:
    """A draft of ``width`` with as many layers, at least ``least_layers``, as make its weights a ``ratio``-th of the target's.

    Examples
    --------
    >>> draft_shape(SHAPES["7b"], 10, DRAFT_WIDTH, 2).shape.layers
    12
    """
    head = target.vocabulary * width.hidden
    layers = round((target.parameters / ratio - head) / width.layer_weights)
    return Sized(replace(width, layers=max(layers, least_layers)), target.vocabulary)
