"""Programs over fixed memory: captured once, then run at a single launch (CUDA graphs).

A program is a function without arguments. It reads tensors that its owner fills before each run and gives the tensors it writes.
It must be repeatable: nothing that it looks at on the host may change, and to run it twice is as good as once. Its results hold
until another program of the same maker runs, so whoever keeps them copies them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

import torch

from predictors.controllers.base import GraphMaker, Program

T = TypeVar("T")

WARM_UPS = 2  # runs before a capture: libraries load their kernels and choose among them
MOST_PROGRAMS = 64  # of one kind that are kept; a sampling setting no longer used gives way


class PlainCalls:
    """Runs a program by calling its function: on CPUs, where a launch costs nothing."""

    device = torch.device("cpu")

    def make(self, function: Program[T]) -> Program[T]:
        return function


ONE_AT_A_TIME = Lock()  # the other model may capture in another thread


class CudaGraphs:
    """Captures programs as CUDA graphs. They share memory, so all are captured on one stream, whose ``priority`` their kernels
    keep; what the matrix library sets aside for itself lies in that memory too, or a graph would hold a pointer into memory that
    others may get."""

    made = 0  # by all makers: capturing takes far longer than running, and a run that captured is not worth timing

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device, priority=priority)

    def make(self, function: Program[T]) -> Program[T]:
        current = torch.cuda.current_stream(self.device)
        graph = torch.cuda.CUDAGraph()
        with ONE_AT_A_TIME:
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    function()
            # another thread may be at work meanwhile: only this one's calls belong to the graph
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                torch._C._cuda_clearCublasWorkspaces()
                try:
                    results = function()
                finally:
                    torch._C._cuda_clearCublasWorkspaces()
            current.wait_stream(self._stream)
            CudaGraphs.made += 1

        def run() -> T:
            with torch.cuda.device(self.device):  # the draft's may be another than the caller's
                graph.replay()
            return results

        return run


def maker_for(device: torch.device, priority: int = 0) -> GraphMaker:
    """Return a maker of CUDA graphs on a CUDA device, of plain calls elsewhere."""
    return CudaGraphs(device, priority) if device.type == "cuda" else PlainCalls()


class Programs:
    """Programs of one ``maker`` by key; beyond `MOST_PROGRAMS` the one used the longest ago gives way to a new one."""

    def __init__(self, maker: GraphMaker) -> None:
        self.maker = maker
        self._known: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, build: Callable[[GraphMaker], T]) -> T:
        """Return the program of ``key``, built if it is not there."""
        if key not in self._known:
            self._known[key] = build(self.maker)
            if len(self._known) > MOST_PROGRAMS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        found: T = self._known[key]
        return found
