"""Messages of two processes through memory that both map: `SLOTS` slots for each direction, message i in slot i % SLOTS.

Tensors are written as typed bytes, all else as a pickle after them that names each tensor by where its bytes start, its dtype and
its shape. The connection only announces a message by a few bytes and never fills up, so that neither side ever waits for the
other to empty it. With at most SLOTS calls unanswered, no unread message is ever overwritten: reply i tells that request i was
read, and request i + SLOTS tells that reply i was.
"""

import mmap
import os
import pickle
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BytesIO
from math import prod
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runtime.overlap.executor import Reply

SLOTS = 4
ALIGNMENT = 64  # bytes: tensors of every dtype, slots and vector loads
LEAST_SLOT = 1 << 14  # bytes: room for the text of any error
SHARED_MEMORY = Path("/dev/shm")
PLACE = struct.Struct("=qq")  # what is announced: where the message's pickle starts and ends in its slot


class Answer(NamedTuple):
    """What a call in the draft process came to: its ``reply`` or the ``error`` it raised with its ``trace`` there, and what was
    ``warned`` as (text, category, file, line)."""

    reply: Reply | None
    error: Exception | None
    trace: str
    warned: list[tuple[str, type[Warning], str, int]]


class Channel:
    """One side of the conversation. ``sent`` and ``received`` count messages; message 0 to the draft process is its set-up, which
    comes through the connection itself.

    ``torn``: an interruption fell between an announcement and its count, so the two sides may disagree. Wait for an announcement
    before `receive`: what interrupts waiting tears nothing.
    """

    def __init__(self, connection: Connection, outgoing: Sequence[memoryview], incoming: Sequence[memoryview]) -> None:
        self._connection = connection
        self._outgoing = outgoing
        self._incoming = incoming
        self._place = (0, 0)
        self.sent = 0
        self.received = 0
        self.torn = False

    def send(self, message: Any) -> None:
        """Values of CPU tensors travel, whatever their strides; that they require gradients does not.

        Raises
        ------
        ValueError
            If the message cannot be pickled, is larger than its slot (naming both sizes) or holds tensors of another device. Then
            nothing is sent.
        """
        stream, slot = BytesIO(), self._outgoing[self.sent % SLOTS]
        writer = _Writer(stream, slot)
        with travelling("send to another process"):
            writer.dump(message)
        start, pickled = writer.used, stream.getbuffer()
        end = start + len(pickled)
        if end > len(slot):
            raise ValueError(
                f"a message of {end} bytes is larger than its slot of {len(slot)} bytes; raise slot_bytes."
            )
        slot[start:end] = pickled
        self.torn = True
        self._connection.send_bytes(PLACE.pack(start, end))
        self.sent += 1
        self.torn = False

    def receive(self) -> None:
        """Take the next announcement; `read` then reads the message."""
        self.torn = True
        self._place = PLACE.unpack(self._connection.recv_bytes())
        self.received += 1
        self.torn = False

    def read(self) -> Any:
        """The message last received; its tensors are copies. `ValueError` if it cannot be unpickled in this process."""
        slot, (start, end) = self._incoming[(self.received - 1) % SLOTS], self._place
        with travelling("receive from another process"):
            return _Reader(BytesIO(slot[start:end]), slot).load()


class _Writer(pickle.Pickler):
    """Copies tensors into a slot; beyond its end it only counts, for the error to name the whole size."""

    def __init__(self, stream: BytesIO, slot: memoryview) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._slot = slot
        self.used = 0

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_quantized:
            return None
        if not value.is_cpu:
            raise ValueError(f"a tensor on {value.device} cannot go to the draft process, which computes on the CPU.")
        place = self.used, value.dtype, tuple(value.shape)
        self.used = aligned(self.used + value.nbytes)
        if self.used <= len(self._slot):
            _tensor(self._slot, *place).copy_(value)
        return place


class _Reader(pickle.Unpickler):
    def __init__(self, stream: BytesIO, slot: memoryview) -> None:
        super().__init__(stream)
        self._slot = slot

    def persistent_load(self, place: Any) -> Tensor:
        return _tensor(self._slot, *place).clone()


def _tensor(slot: memoryview, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A view of the slot's memory."""
    count = prod(shape)
    if count == 0:  # there is no view of nothing
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(slot, dtype=dtype, count=count, offset=start).view(shape)


@contextmanager
def travelling(action: str) -> Iterator[None]:
    """What pickle raises within the block, in either direction, is a `ValueError` with the remedy."""
    try:
        yield
    except (pickle.PickleError, AttributeError, ImportError, TypeError) as error:
        raise ValueError(
            f"cannot {action}: {error}. Both processes must be able to import its class or function: move it from the main "
            "script or notebook into a module, or decode with overlap: none or streams."
        ) from error


def slots(file_descriptor: int, slot_bytes: int) -> tuple[list[memoryview], list[memoryview]]:
    """The slots for requests and those for replies in a file that is `reserved`; the mapping lives as long as they do."""
    memory = memoryview(mmap.mmap(file_descriptor, 2 * SLOTS * slot_bytes))
    every = [memory[i * slot_bytes : (i + 1) * slot_bytes] for i in range(2 * SLOTS)]
    return every[:SLOTS], every[SLOTS:]


def aligned(count: int) -> int:
    """``count`` bytes rounded up to `ALIGNMENT`."""
    return -(-count // ALIGNMENT) * ALIGNMENT


@contextmanager
def reserved(slot_bytes: int) -> Iterator[int]:
    """An anonymous file, open within the block, with all its memory reserved: where there is too little, no later write fails.

    Raises
    ------
    OSError
        Naming the bytes needed, where, and the remedy.
    """
    folder = str(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else tempfile.gettempdir()
    size = 2 * SLOTS * slot_bytes
    with ExitStack() as opened:
        try:
            file = opened.enter_context(tempfile.TemporaryFile(dir=folder))
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:  # macOS
                file.write(bytes(size))
                file.flush()
        except OSError as error:
            need = f"the draft process needs {size} bytes of shared memory in {folder}"
            remedy = "free or enlarge it, or decode with overlap: none"
            raise OSError(error.errno, f"{error.strerror}: {need}; {remedy}") from error
        yield file.fileno()
