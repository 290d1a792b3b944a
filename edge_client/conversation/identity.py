"""Who a device is to the server."""

from dataclasses import dataclass

from edge_client.protocol.chunks import MAX_CHUNK


@dataclass(frozen=True)
class Identity:
    """`instance` (8 hex digits) is fresh for each process: two devices with one name are told apart by it, and the
    second is refused instead of throwing out the first."""

    run: str
    device: str
    instance: str
    samples: int
    input_dim: int
    up_rate: float = 0.0
    down_rate: float = 0.0
    keepalive: int = 60
    chunk_size: int = MAX_CHUNK
