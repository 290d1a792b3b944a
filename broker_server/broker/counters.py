"""What the broker counts, as frozen snapshots. Bytes are MQTT bytes: no TLS, TCP or IP headers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Traffic:
    """One connection, or all of them. Messages are PUBLISH packets; sent bytes have left the broker's own buffers."""

    bytes_received: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    messages_sent: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """A moment of the broker."""

    total: Traffic
    """Since the start, closed connections included."""
    connections: Mapping[str, Traffic]
    """The open connections by client id."""
    closed: Mapping[str, int]
    """Ended connections by reason: disconnect, lost, keepalive, taken over, stalled, backlog, malformed, ..."""
    dropped: Mapping[str, int]
    """Messages that did not reach somebody they were meant for, by reason: publish denied, offline overflow, ..."""
    sessions: int
    retained: int
    retained_bytes: int
    backlog: int
    """Bytes waiting for all connected and absent clients; a payload counts once for each client it waits for."""


@dataclass(slots=True)
class TrafficTally:
    """The running numbers behind `Traffic`."""

    bytes_received: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    messages_sent: int = 0

    def frozen(self) -> Traffic:
        return Traffic(self.bytes_received, self.bytes_sent, self.messages_received, self.messages_sent)


@dataclass(slots=True)
class Tally:
    """The running numbers behind `Counters`."""

    total: TrafficTally = field(default_factory=TrafficTally)
    closed: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
