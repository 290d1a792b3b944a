"""Chunk size and keepalive from a link's figures: no message may hold the link for long, no ping come too late.

A device has `IN_FLIGHT` chunks under way, and MQTT's ping waits behind them. Rates are bits/s at the IP layer, times
seconds, sizes bytes.
"""

import math

from edge_client.errors import ConfigError
from edge_client.protocol.chunks import MAX_CHUNK

MIN_CHUNK = 256
DEFAULT_KEEPALIVE = 60
MAX_KEEPALIVE = 65_535
"""MQTT's field has 16 bits."""
IN_FLIGHT = 2
"""Chunks that a device has under way unacknowledged."""
MSS = 1448
"""Payload bytes of a full TCP segment on Ethernet (1500 B packets, TCP timestamps)."""
HEADER = 52
"""IPv4 and TCP header bytes of each segment."""


def slowest(*rates: float | None) -> float | None:
    """Return the lowest of the rates that are known; 0 and None stand for unknown or unshaped."""
    return min((rate for rate in rates if rate), default=None)


def chunk_size(rate: float | None, *, mss: int = MSS, header: int = HEADER) -> int:
    """Return the payload bytes of a chunk so that one takes less than a quarter of the default keepalive.

    At most 64 KiB and never below 256 B, where the keepalive grows instead.
    """
    if rate is None:
        return MAX_CHUNK
    budget = rate * DEFAULT_KEEPALIVE / (2 * IN_FLIGHT) / 8  # wire bytes; two chunks under way, twice over
    segments = math.ceil(budget / (mss + header))
    return max(MIN_CHUNK, min(MAX_CHUNK, math.ceil(budget) - 1 - segments * header))


def keepalive(rate: float | None, chunk: int, *, delays: float = 0.0, mss: int = MSS, header: int = HEADER) -> int:
    """Return the MQTT keepalive in whole seconds for chunks of `chunk` bytes at a device's slowest rate.

    60 s, or as long as twice the chunks under way and the `delays` of two round trips take: a ping waits behind the
    former for the latter. Raises `ConfigError` where MQTT's 65,535 s do not suffice.
    """
    if chunk < 1:
        raise ConfigError(f"chunk of {chunk} B: give at least 1 B")
    seconds = max(DEFAULT_KEEPALIVE, math.floor(2 * busy(rate, chunk, mss=mss, header=header) + delays) + 1)
    if seconds > MAX_KEEPALIVE:
        raise ConfigError(
            f"chunks of {chunk} B need a keepalive of {seconds} s, MQTT allows {MAX_KEEPALIVE} s; "
            "send smaller chunks or choose a faster link"
        )
    return seconds


def busy(rate: float | None, chunk: int, *, mss: int = MSS, header: int = HEADER) -> float:
    """Return for how many seconds the chunks under way keep the link busy."""
    wire = chunk + header * math.ceil(chunk / mss)
    return 0.0 if rate is None else IN_FLIGHT * wire * 8 / rate
