"""Seeds that follow from a name."""

import hashlib


def seed_of(key: str) -> int:
    """A seed that follows from ``key`` alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
