"""Memory that two processes share: an anonymous file with `SLOTS` message slots per direction, mapped by both.

Message i lies in slot i % SLOTS of its direction. With at most SLOTS calls unanswered, no unread message is ever overwritten:
reply i tells that request i was read, and request i + SLOTS tells that reply i was.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

SLOTS = 4
ALIGNMENT = 64  # bytes: tensors of every dtype, slots and vector loads
LEAST_SLOT = 1 << 14  # bytes: room for the text of any error
SHARED_MEMORY = Path("/dev/shm")


def slots(file_descriptor: int, slot_bytes: int) -> tuple[list[memoryview], list[memoryview]]:
    """The slots for requests and those for replies in a file that is `reserved`; the mapping lives as long as they do."""
    memory = memoryview(mmap.mmap(file_descriptor, 2 * SLOTS * slot_bytes))
    every = [memory[i * slot_bytes : (i + 1) * slot_bytes] for i in range(2 * SLOTS)]
    return every[:SLOTS], every[SLOTS:]


def rounded(slot_bytes: int) -> int:
    """The size of a slot that holds ``slot_bytes``: aligned, and never too small to report an error."""
    return aligned(max(slot_bytes, LEAST_SLOT))


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
            _allocate(file, size)
        except OSError as error:
            need = f"the draft process needs {size} bytes of shared memory in {folder}"
            remedy = "free or enlarge it, or decode with overlap: none"
            raise OSError(error.errno, f"{error.strerror}: {need}; {remedy}") from error
        yield file.fileno()


def _allocate(file: IO[bytes], size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:  # macOS
        file.write(bytes(size))
        file.flush()
