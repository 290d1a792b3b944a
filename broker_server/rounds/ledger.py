"""The server's side of the payload and message ledgers, per device.

"up" is what arrived from a device, "down" what was sent to it. A message to all counts once for each device it is
meant for, because it crosses each device's link.
"""

from collections import defaultdict
from collections.abc import Iterable

from edge_client.protocol.messages import Tally
from edge_client.protocol.tally import Kind, TallySheet


class Ledger:
    """Byte counts since the last `drain`."""

    def __init__(self) -> None:
        self._sheets: dict[str, TallySheet] = defaultdict(TallySheet)

    def received(self, device: str, kind: Kind, message_bytes: int) -> None:
        self._sheets[device].count("up", kind, message_bytes)

    def complete(self, device: str, payload_bytes: int) -> None:
        """Add the tensors of an upload whose last chunk has come; its messages are counted already."""
        self._sheets[device].add_payload("up", "upload", payload_bytes)

    def sent(self, devices: Iterable[str], kind: Kind, message_bytes: int, payload_bytes: int = 0) -> None:
        for device in devices:
            self._sheets[device].count("down", kind, message_bytes, payload_bytes)

    def drain(self) -> dict[str, tuple[Tally, ...]]:
        """Return the counts by device name and start again from zero."""
        sheets, self._sheets = self._sheets, defaultdict(TallySheet)
        return {device: sheets[device].drain() for device in sorted(sheets)}
