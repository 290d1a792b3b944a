"""What the core asks its face to do. The face obeys in order; the core never waits for it."""

from dataclasses import dataclass

from broker_server.broker.packets import Packet

ConnectionId = int


@dataclass(frozen=True, slots=True)
class Send:
    """Write `packet`, `size` bytes long, to the client, after everything sent before; report with `Broker.drained`."""

    connection: ConnectionId
    packet: Packet
    size: int


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection; the core has already forgotten it. `reason` is a key of `Counters.closed`."""

    connection: ConnectionId
    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop reading from the client: what it publishes is more than somebody else can take."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class Resume:
    """Read from the client again."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the operator; one line."""

    message: str


Effect = Send | Close | Pause | Resume | Warn
