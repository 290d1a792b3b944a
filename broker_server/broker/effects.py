"""What the core asks its face to do. The face obeys in order; the core never waits for it."""

from msgspec import Struct

from broker_server.broker.packets import Packet

ConnectionId = int


class Send(Struct, frozen=True, gc=False):
    """Write `packet`, `size` bytes long, to the client, after everything sent before; report with `Broker.drained`."""

    connection: ConnectionId
    packet: Packet
    size: int


class Close(Struct, frozen=True, gc=False):
    """End the connection; the core has already forgotten it. `reason` is a key of `Counters.closed`."""

    connection: ConnectionId
    reason: str


class Pause(Struct, frozen=True, gc=False):
    """Stop reading from the client: what it publishes is more than somebody else can take."""

    connection: ConnectionId


class Resume(Struct, frozen=True, gc=False):
    """Read from the client again."""

    connection: ConnectionId


class Warn(Struct, frozen=True, gc=False):
    """Tell the operator; one line."""

    message: str


Effect = Send | Close | Pause | Resume | Warn
