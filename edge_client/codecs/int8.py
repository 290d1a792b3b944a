"""float32 arrays as 8-bit integers with one scale per row.

A row r becomes q = round(r / s) with s = max |r| / 127, and is read as q * s: the error of an entry is at most s / 2.
A vector is cut into rows of `ROW`, the last one shorter; one of fewer entries passes as it is: little would be saved.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import GcaError, ProtocolError
from edge_client.protocol.codec import Arrays

LEVELS = 127
ROW = 256
"""Entries of a vector that share a scale."""
SCALE = "/scale"
"""Ends the name of the scales of an array."""


@dataclass(frozen=True)
class Int8:
    """See the module. {name: (..., d)} becomes {name: int8 of the same shape, name/scale: float32 (rows,)}."""

    def pack(self, arrays: Arrays) -> Arrays:
        packed: Arrays = {}
        for name, array in arrays.items():
            if array.dtype != np.float32 or (array.ndim == 1 and len(array) < ROW):
                packed[name] = array
                continue
            if not np.isfinite(array).all():
                raise GcaError(f"{name}: holds NaN or infinity, which int8 cannot")
            rows = _rows(array)
            # Divided by the scale that the receiver will see: one below the smallest float32 makes a row of zeros.
            scales = (np.abs(rows).max(axis=1, initial=0.0) / np.float32(LEVELS)).astype(np.float32)
            levels = np.divide(rows, scales[:, None], out=np.zeros(rows.shape), where=scales[:, None] > 0)
            levels = np.rint(levels).clip(-LEVELS, LEVELS)
            packed[name] = levels.astype(np.int8).reshape(-1)[: array.size].reshape(array.shape)
            packed[name + SCALE] = scales
        return packed

    def unpack(self, arrays: Arrays, limit: int) -> Arrays:
        unpacked: Arrays = {}
        for name, array in arrays.items():
            if name.endswith(SCALE):
                if name.removesuffix(SCALE) not in arrays:
                    raise ProtocolError(f"{name[:40]!r}: the scales of no array")
                continue
            if array.dtype != np.int8:
                unpacked[name] = array
                continue
            rows, scales = _rows(array), arrays.get(name + SCALE)
            if scales is None or scales.dtype != np.float32 or scales.shape != (len(rows),):
                raise ProtocolError(f"{name[:40]!r}: {len(rows)} rows of int8 need as many float32 scales")
            with np.errstate(over="ignore", invalid="ignore"):  # hostile scales: the method refuses what is not finite
                values = rows * scales[:, None]
            unpacked[name] = values.astype(np.float32).reshape(-1)[: array.size].reshape(array.shape)
        return unpacked


def _rows(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the array as rows that share a scale; a vector's last row is filled up with zeros."""
    if array.ndim != 1:
        return array.reshape(-1, array.shape[-1]) if array.ndim and array.shape[-1] else array.reshape(0, 1)
    filled = np.zeros(-(-len(array) // ROW) * ROW, array.dtype)
    filled[: len(array)] = array
    return filled.reshape(-1, ROW)
