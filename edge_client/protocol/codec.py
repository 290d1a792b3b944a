"""Bytes to messages and back: msgpack under explicit limits, then a typed check, then (only then) numpy.

Decoding goes through two gates. `msgpack` builds plain values under limits derived from the message's length,
so that a header claiming four billion elements costs nothing; `msgspec` checks those values against the one
struct that belongs to the topic. Whatever fails is a `ProtocolError` with one line that says why.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

import msgpack
import msgspec
import numpy as np

from edge_client.errors import ProtocolError
from edge_client.protocol.messages import Array, Header

MAX_MESSAGE = 262_144
"""Bytes of one encoded message; chunks (64 KiB) and telemetry stay below."""
MAX_BODY = 256 * 1024 * 1024
"""Bytes of one reassembled body."""
SHORT = 4096
"""Bytes of a message that are quickly compared, and may be remembered."""
MAX_ELEMENTS = 65_536
"""Entries of any list or map; the longest is that of the chunks still missing."""
MAX_ARRAYS, MAX_DIMENSIONS = 256, 4
"""Arrays of a body, and lengths of a shape. Lists and maps in place of an array's bytes would cost 60 times as much
memory."""

FP32 = 4
"""Bytes of the numbers that the payload ledger counts."""

M = TypeVar("M", bound=Header)
Arrays = dict[str, np.ndarray]

_encoder = msgspec.msgpack.Encoder()


def encode(message: Header) -> bytes:
    """Return the message as a msgpack map."""
    return _encoder.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Return the message of type `kind` that `data` holds.

    Raises `ProtocolError` when it is too long, not msgpack, or not of this type.
    """
    return _decode_short(data, kind) if len(data) <= SHORT else _decode(data, kind)


def _decode(data: bytes, kind: type[M]) -> M:
    return _convert(_unpack(data, MAX_MESSAGE), kind)


_decode_short = lru_cache(64)(_decode)
"""A message to all devices is one value, decoded once for those of one process: messages are frozen."""


def encode_arrays(arrays: Arrays) -> bytes:
    """Return named arrays as one body: {name: {dtype, shape, data}}, names sorted."""
    wire = {}
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        wire[name] = Array(dtype=little.dtype.str, shape=little.shape, data=little.tobytes())  # type: ignore[arg-type]
    return _encoder.encode(wire)


def decode_arrays(body: bytes, limit: int = MAX_BODY) -> Arrays:
    """Return the named arrays of a body, read-only and in native byte order.

    Raises `ProtocolError` when it is longer than `limit` or any shape does not match its bytes.
    """
    arrays: Arrays = {}
    for name, wire in _convert(_unpack_body(body, limit), dict[str, Array]).items():
        dtype = np.dtype(wire.dtype)
        expected = dtype.itemsize
        for length in wire.shape:  # Python integers: no overflow can make a huge shape look small
            expected *= length
        if expected != len(wire.data):
            raise ProtocolError(
                f"array {name[:40]!r} of shape {wire.shape} needs {expected} bytes, has {len(wire.data)}"
            )
        native = np.frombuffer(wire.data, dtype).astype(dtype.newbyteorder("="), copy=False)
        try:
            arrays[name] = native.reshape(wire.shape)
        except ValueError:  # of no bytes, because one length is 0, but beyond what numpy can count
            raise ProtocolError(f"array {name[:40]!r} cannot have shape {wire.shape}") from None
        arrays[name].flags.writeable = False
    return arrays


def payload_bytes(arrays: Arrays) -> int:
    """Return the payload ledger's size of a body: the bytes of its tensors and nothing else."""
    return sum(array.nbytes for array in arrays.values())


def digest(body: bytes) -> bytes:
    """Return the 8-byte BLAKE2b digest that ties the chunks of a body together."""
    return blake2b(body, digest_size=8).digest()


def _unpack(data: bytes, limit: int) -> object:
    return _unpacked(data, limit, max_array_len=MAX_ELEMENTS, max_map_len=MAX_ELEMENTS, object_pairs_hook=_map)


def _unpack_body(data: bytes, limit: int) -> object:
    """Read a body, which may be a thousand times as long as a message, so it must not be made of small values: each
    array is a map with one list, its shape, and one more map is around them."""
    left = 2 * MAX_ARRAYS + 1

    def counted(values: list[object]) -> list[object]:
        nonlocal left
        if (left := left - 1) < 0:
            raise ValueError("more lists and maps than arrays have")
        return values

    def mapped(pairs: list[tuple[object, object]]) -> dict[object, object]:
        counted([])
        return _map(pairs)

    return _unpacked(data, limit, max_array_len=MAX_DIMENSIONS, max_map_len=MAX_ARRAYS, list_hook=counted,
                     object_pairs_hook=mapped)  # fmt: skip


def _unpacked(data: bytes, limit: int, **limits: Any) -> object:
    if len(data) > limit:
        raise ProtocolError(f"message of {len(data)} bytes is over the limit of {limit}")
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, **limits)
    # The unpacker reports its own errors, bad UTF-8, unhashable keys and excessive nesting by different types.
    except (msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not msgpack: {type(error).__name__}") from None


def _map(pairs: list[tuple[object, object]]) -> dict[object, object]:
    """Return a map whose keys are all different: one that says a thing twice could be read in two ways."""
    whole = dict(pairs)
    if len(whole) != len(pairs):
        raise ValueError("a key occurs twice")
    return whole


T = TypeVar("T")


def _convert(value: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"not a valid {getattr(kind, '__name__', 'body')}: {error}"[:300]) from None
