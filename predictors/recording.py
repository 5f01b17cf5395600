"""What a network may be served with on a device: programs over fixed memory (the runtime's `runtime.recorder` has them)."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")
Program = Callable[[], T]


class Recorder(Protocol):
    """How programs of one model are run again. Programs of one recorder run one after the other."""

    def record(self, function: Program[T]) -> Program[T]:
        """Run ``function`` and return what runs it again over the same memory."""
        ...
