"""Messages of two processes: written into slots and read there, tensors as typed bytes and all else as a pickle behind them.

The pickle names each tensor by where its bytes start, its dtype and its shape. It travels through the slot as well: the
connection only announces a message by a few bytes and never fills up, so that neither side ever waits for the other to empty it.
"""

import pickle
import struct
from collections.abc import Sequence
from io import BytesIO
from math import prod
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from runtime.overlap.slab import SLOTS, aligned

REMEDY = (
    "Both processes must be able to import its class or function: move it from the main script or notebook into a module, "
    "or decode with overlap: none or streams."
)
# What pickle raises for it, in both directions.
UNPICKLABLE = (pickle.PickleError, AttributeError, ImportError, TypeError)
PLACE = struct.Struct("=qq")  # what is announced: where the message's pickle starts and ends in its slot


class Channel:
    """One side of the conversation: numbered messages through slots, announced over a connection.

    ``sent`` and ``received`` count messages; message i of a direction is in slot i % SLOTS.

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
        """Raises as `write`, and then nothing is sent."""
        start, end = write(message, self._outgoing[self.sent % SLOTS])
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
        """The message last received; raises as the function of that name."""
        return read(self._incoming[(self.received - 1) % SLOTS], *self._place)


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


def write(message: Any, slot: memoryview) -> tuple[int, int]:
    """Write ``message`` into ``slot``; returns where its pickle starts and ends.

    Values of CPU tensors travel, whatever their strides; that they require gradients does not.

    Raises
    ------
    ValueError
        If it cannot be pickled, is larger than the slot (naming both sizes) or holds tensors of another device.
    """
    stream = BytesIO()
    writer = _Writer(stream, slot)
    try:
        writer.dump(message)
    except UNPICKLABLE as error:
        raise ValueError(f"cannot send to another process: {error}. {REMEDY}") from error
    pickled = stream.getbuffer()
    end = writer.used + len(pickled)
    if end > len(slot):
        raise ValueError(f"a message of {end} bytes is larger than its slot of {len(slot)} bytes; raise slot_bytes.")
    slot[writer.used : end] = pickled
    return writer.used, end


def read(slot: memoryview, start: int, end: int) -> Any:
    """The message in ``slot`` whose pickle lies between ``start`` and ``end``; its tensors are copies.

    Raises
    ------
    ValueError
        If it cannot be unpickled in this process.
    """
    try:
        return _Reader(BytesIO(slot[start:end]), slot).load()
    except UNPICKLABLE as error:
        raise ValueError(f"cannot receive from another process: {error}. {REMEDY}") from error


def _tensor(slot: memoryview, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A view of the slot's memory."""
    count = prod(shape)
    if count == 0:  # there is no view of nothing
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(slot, dtype=dtype, count=count, offset=start).view(shape)
