"""Bodies cut into chunks and put together again, whatever order, number and repetition they arrive in."""

from collections.abc import Callable, Iterator

from edge_client.errors import ProtocolError
from edge_client.protocol.codec import digest
from edge_client.protocol.messages import Chunk

MAX_CHUNK = 65_536
"""Bytes of a body in one chunk; on slow links fewer, so that no packet holds the link for long."""


def split(body: bytes, size: int, *, run: str, round: int, device: str, seq: Callable[[], int]) -> Iterator[Chunk]:
    """Yield the chunks of `body`, each of at most `size` bytes; `seq` numbers the messages."""
    mark = digest(body)
    count = max(1, -(-len(body) // size))
    for index in range(count):
        yield Chunk(
            run=run, round=round, device=device, seq=seq(), index=index, chunks=count, size=len(body), digest=mark,
            data=body[index * size : (index + 1) * size],
        )  # fmt: skip


class Reassembly:
    """Collects the chunks of one body.

    The first chunk taken fixes their number, the size and the digest; a chunk that disagrees is refused, one already
    held is a duplicate. Memory is bounded by `limit`, which the receiver knows from what it expects.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.head: Chunk | None = None
        self._parts: dict[int, bytes] = {}
        self._held = 0

    def add(self, chunk: Chunk) -> bool:
        """Take a chunk; return False for a duplicate. Raises `ProtocolError` when it cannot belong."""
        if chunk.size > self.limit or chunk.chunks > chunk.size:
            raise ProtocolError(f"announces {chunk.size} bytes in {chunk.chunks} chunks, at most {self.limit} fit")
        first = self.head or chunk
        if (chunk.chunks, chunk.size, chunk.digest) != (first.chunks, first.size, first.digest):
            raise ProtocolError(f"chunk {chunk.index} belongs to another body than the first chunk seen")
        if chunk.index >= chunk.chunks:
            raise ProtocolError(f"chunk {chunk.index} of {chunk.chunks}")
        if chunk.index in self._parts:
            return False
        if self._held + len(chunk.data) > chunk.size:
            raise ProtocolError(f"chunks hold more than the announced {chunk.size} bytes")
        self.head = first  # only now: a chunk that is refused must not speak for the others
        self._held += len(chunk.data)
        self._parts[chunk.index] = chunk.data
        return True

    @property
    def missing(self) -> tuple[int, ...]:
        """The indices still to come; empty before the first chunk (nothing is known) and at the end."""
        return tuple(i for i in range(self.head.chunks) if i not in self._parts) if self.head else ()

    @property
    def complete(self) -> bool:
        return self.head is not None and len(self._parts) == self.head.chunks

    def body(self) -> bytes:
        """Return the whole body; raises `ProtocolError` if chunks are missing or the digest differs."""
        if self.head is None or self.missing:
            raise ProtocolError(f"chunks {self.missing[:10]} are missing")
        whole = b"".join(self._parts[i] for i in range(self.head.chunks))
        if len(whole) != self.head.size or digest(whole) != self.head.digest:
            raise ProtocolError("the chunks do not give the announced body")
        return whole
