"""Cells of table ``transfer``: handing ``bytes`` over to where the other half of a decoder runs.

CPU    to another process, one way: half of a round trip. Each side copies that many bytes (the parent into shared memory, the
       child out of it) and signals on a pipe, so half a trip is one copy and one signal.
CUDA   from the device to pinned host memory, waited for.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from time import perf_counter

import torch
from torch import Tensor, multiprocessing

from runtime.latency.cells import Cell, seconds_of

PATIENCE = 10.0  # seconds a child has to end by itself

HandOver = Callable[[int], float]  # seconds of handing over that many bytes


@contextmanager
def open_transfer(device: torch.device, most_bytes: int) -> Iterator[HandOver]:
    """What measures one transfer of up to ``most_bytes`` from ``device``. Leaving the block ends the child process."""
    if device.type == "cpu":
        with _child_process(most_bytes) as hand_over:
            yield hand_over
    else:
        yield _to_host(device, most_bytes)


def transfer_cells(hand_over: HandOver, sizes: Sequence[int]) -> list[Cell]:
    """Cells of the table ``transfer``."""

    def measure(size: int) -> tuple[float]:
        return (hand_over(size),)

    return [Cell(("transfer",), {"bytes": size}, partial(measure, size)) for size in sizes]


@contextmanager
def _child_process(most_bytes: int) -> Iterator[HandOver]:
    context = multiprocessing.get_context("spawn")
    shared = torch.zeros(most_bytes, dtype=torch.uint8).share_memory_()
    ours, theirs = context.Pipe()
    child = context.Process(target=answer, args=(theirs, shared), daemon=True)
    child.start()
    theirs.close()  # the child's copy is the only one: where the child dies, waiting for it ends
    try:
        ours.recv()
        yield partial(_half_round_trip, ours, shared, torch.ones_like(shared))
    finally:
        ours.close()
        child.join(PATIENCE)
        if child.is_alive():
            child.kill()
            child.join()


def answer(connection: Connection, shared: Tensor) -> Tensor:
    """What the child does: copy as many bytes as it is told and say so, until the other side hangs up; returns its copy."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the parent's to handle
    torch.set_num_threads(1)
    own = torch.zeros_like(shared)
    try:
        connection.send(0)
        while True:
            size = connection.recv()
            own[:size].copy_(shared[:size])
            connection.send(size)
    except (EOFError, OSError):
        return own


def _half_round_trip(connection: Connection, shared: Tensor, own: Tensor, size: int) -> float:
    start = perf_counter()
    shared[:size].copy_(own[:size])
    connection.send(size)
    connection.recv()
    return (perf_counter() - start) / 2


def _to_host(device: torch.device, most_bytes: int) -> HandOver:
    source = torch.zeros(most_bytes, dtype=torch.uint8, device=device)
    host = torch.empty(most_bytes, dtype=torch.uint8, pin_memory=True)

    def hand_over(size: int) -> float:
        return seconds_of(lambda: host[:size].copy_(source[:size], non_blocking=True), device)

    return hand_over
