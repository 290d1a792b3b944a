"""All arrays of a body as one Zstandard frame (RFC 8878).

The library is imported on first use: a device that never compresses needs none.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from edge_client.errors import EnvironmentFault, ProtocolError, pip_install
from edge_client.protocol.codec import MAX_BODY, Arrays, decode_arrays, encode_arrays

LEVEL = 3
"""The library's default; higher ones take a small board seconds for a model."""
FRAME = "zstd"
WINDOW = 2**27
"""Largest window that a frame may ask the receiver to hold, in bytes."""


@dataclass(frozen=True)
class Zstd:
    """See the module. {name: array, ...} becomes {"zstd": uint8 (n,)}."""

    def pack(self, arrays: Arrays) -> Arrays:
        frame = _library().ZstdCompressor(level=LEVEL).compress(encode_arrays(arrays))
        return {FRAME: np.frombuffer(frame, np.uint8)}

    def unpack(self, arrays: Arrays, limit: int) -> Arrays:
        if arrays.keys() != {FRAME} or arrays[FRAME].dtype != np.uint8 or arrays[FRAME].ndim != 1:
            raise ProtocolError(f"expected one compressed frame, got {sorted(arrays)}"[:200])
        library = _library()
        reader = library.ZstdDecompressor(max_window_size=WINDOW).stream_reader(BytesIO(arrays[FRAME].tobytes()))
        try:
            # A frame may promise little and hold much: never read beyond the limit, which may be far beyond memory too.
            body = reader.read(min(limit, MAX_BODY) + 1)
        except library.ZstdError as error:
            raise ProtocolError(f"not a Zstandard frame: {error}"[:200]) from None
        return decode_arrays(body, limit)


def _library() -> Any:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise EnvironmentFault(f"codec zstd needs the package zstandard: {pip_install('zstd')}") from None
    return zstandard
