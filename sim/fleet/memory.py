"""Fewer looks for reference cycles while a fleet runs: its objects are many, and nearly all end by their counts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

LEAST, PER_DEVICE = 50_000, 300
"""Objects made, less those freed, between two looks at the youngest. All devices may be in the middle of something at
once, and looking at that again and again cost a fifth of a run with 8,000 devices."""


@contextmanager
def rare_collection(devices: int) -> Iterator[None]:
    """Look rarely inside the block."""
    before = gc.get_threshold()
    gc.set_threshold(max(LEAST, PER_DEVICE * devices), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
