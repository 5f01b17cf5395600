"""One side of the conversation of two processes: numbered messages through slots, announced over a connection."""

import struct
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from runtime.overlap.messages import read, write
from runtime.overlap.slab import SLOTS

PLACE = struct.Struct("=qq")  # what is announced: where the message's pickle starts and ends in its slot


class Channel:
    """``sent`` and ``received`` count messages; message i of a direction is in slot i % SLOTS.

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
        """Raises as `messages.write`, and then nothing is sent."""
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
        """The message last received; raises as `messages.read`."""
        return read(self._incoming[(self.received - 1) % SLOTS], *self._place)
