"""The byte tally of one end of the wire: the payload and message ledgers (the wire ledger is the link's).

payload: bytes of the tensors alone, as the paper counts; message: bytes of the encoded msgpack bodies.
"""

from collections import defaultdict
from typing import Literal

from edge_client.protocol.messages import Tally

Direction = Literal["up", "down"]
Kind = Literal["upload", "broadcast", "control", "telemetry", "ignored"]


class TallySheet:
    """Counts messages and bytes per (direction, kind)."""

    def __init__(self) -> None:
        self._cells: dict[tuple[Direction, Kind], list[int]] = defaultdict(lambda: [0, 0, 0])

    def count(self, direction: Direction, kind: Kind, message_bytes: int, payload_bytes: int = 0) -> None:
        """Add one message of `message_bytes`, of which `payload_bytes` are tensor bytes."""
        cell = self._cells[direction, kind]
        cell[0] += 1
        cell[1] += payload_bytes
        cell[2] += message_bytes

    def add_payload(self, direction: Direction, kind: Kind, payload_bytes: int) -> None:
        """Add tensor bytes that became known only after their messages were counted."""
        self._cells[direction, kind][1] += payload_bytes

    def drain(self) -> tuple[Tally, ...]:
        """Return the counts since the last call, sorted, and start again from zero."""
        cells, self._cells = self._cells, defaultdict(lambda: [0, 0, 0])
        return tuple(
            Tally(direction=direction, kind=kind, messages=n, payload_bytes=payload, message_bytes=message)
            for (direction, kind), (n, payload, message) in sorted(cells.items())
        )
