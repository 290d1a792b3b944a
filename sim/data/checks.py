"""The two tests that published bytes pass before anything parses them: no larger than known, and the right sum."""

from hashlib import sha256
from typing import Protocol

from edge_client.errors import EnvironmentFault
from sim.data.sources import RawFile


class Readable(Protocol):
    """Anything that yields bytes when asked for at most `size` of them."""

    def read(self, size: int, /) -> bytes: ...


def read_bounded(stream: Readable, limit: int, where: str) -> bytes:
    """Read `stream` to its end; more than `limit` bytes raise EnvironmentFault, having read one byte too many."""
    content = stream.read(limit + 1)
    if len(content) > limit:
        raise EnvironmentFault(f"{where} holds more than the {limit:,} bytes it may have; it is not the published file")
    return content


def require_digest(content: bytes, file: RawFile, where: str) -> None:
    """Raise EnvironmentFault unless `content` is the published file, bit by bit."""
    found = sha256(content).hexdigest()
    if found != file.sha256:
        raise EnvironmentFault(
            f"{where} is not the published {file.name}: sha256 {found} ({len(content):,} bytes), "
            f"expected {file.sha256} ({file.size:,} bytes)"
        )
