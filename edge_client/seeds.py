"""Random streams that depend on (seed, purpose, round, device) and on nothing else.

No stream is shared between purposes, so results cannot depend on the order of calls, on who runs in which
process, or on Python's hash seed. The key is hashed with BLAKE2b (RFC 7693) into 128 bits for PCG64.
"""

from hashlib import blake2b

import numpy as np

SHARED = "*"
"""Stands for "no particular device" in a key: all devices draw the same stream."""


def digest(seed: int, purpose: str, round: int = 0, device: str = SHARED, *, size: int = 16) -> int:
    """Return a non-negative integer of `size` bytes that is a pure function of the key."""
    key = f"{seed}|{purpose}|{round}|{device}".encode()
    return int.from_bytes(blake2b(key, digest_size=size).digest(), "little")


def stream(seed: int, purpose: str, round: int = 0, device: str = SHARED) -> np.random.Generator:
    """Return the generator of this key; equal keys give equal streams on every machine."""
    return np.random.Generator(np.random.PCG64(digest(seed, purpose, round, device)))
