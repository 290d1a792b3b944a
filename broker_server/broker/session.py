"""One client's state as the standard defines it (section 3.1.2.4), and the state of one connection.

A session outlives its connection when it was asked for with clean_session = False; a connection never outlives its
client.
"""

from collections import deque
from dataclasses import dataclass, field

from broker_server.broker.access import Identity
from broker_server.broker.counters import TrafficTally
from broker_server.broker.effects import ConnectionId
from broker_server.broker.packets import Publish, Will


@dataclass(slots=True)
class Session:
    """Subscriptions, what waits to be sent, what waits to be acknowledged."""

    who: Identity
    clean: bool
    window: int
    """Most QoS 1 messages in flight."""
    connection: "Connection | None" = None
    subscriptions: dict[str, int] = field(default_factory=dict)
    received_qos2: set[int] = field(default_factory=set)
    """Packet ids of QoS 2 messages taken and not yet released: a repeat is not a new message (section 4.3.3)."""
    queue: deque[Publish] = field(default_factory=deque)
    queued_bytes: int = 0
    """Topics and payloads in `queue`."""
    overflow_reported: bool = False
    _in_flight: dict[int, Publish] = field(default_factory=dict)
    _last_id: int = 0

    @property
    def backlog(self) -> int:
        """Bytes that wait for this client: its queue, and what its connection has not taken yet."""
        return self.queued_bytes + (self.connection.unsent if self.connection is not None else 0)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def enqueue(self, message: Publish) -> None:
        """Put a message at the end; its packet id is chosen when it is sent."""
        self.queue.append(message)
        self.queued_bytes += held_bytes(message)

    def next(self) -> Publish | None:
        """Take the next message off the queue; None if there is none or, QoS 0 keeping its place among QoS 1, if the
        window is full."""
        if not self.queue or (self.queue[0].qos and len(self._in_flight) >= self.window):
            return None
        message = self.queue.popleft()
        self.queued_bytes -= held_bytes(message)
        if message.qos:
            packet_id = self._next_id()
            message = Publish(message.topic, message.payload, 1, message.retain, False, packet_id)
            self._in_flight[packet_id] = message
        return message

    def acknowledge(self, packet_id: int) -> bool:
        """Forget a message in flight, in any order; False if there is none with this id (an old duplicate, say)."""
        return self._in_flight.pop(packet_id, None) is not None

    def unacknowledged(self) -> list[Publish]:
        """Return what has to be sent again after a reconnect, in the first order, with DUP set (section 4.4)."""
        return [Publish(m.topic, m.payload, 1, m.retain, True, m.packet_id) for m in self._in_flight.values()]

    def _next_id(self) -> int:
        self._last_id = self._last_id % 65_535 + 1
        while self._last_id in self._in_flight:
            self._last_id = self._last_id % 65_535 + 1
        return self._last_id


@dataclass(slots=True, eq=False)
class Connection:
    """One open connection. Times are the caller's `now`."""

    id: ConnectionId
    opened_at: float
    last_seen: float
    """Last byte received, or end of the last pause: what was not read cannot count against the client."""
    certified: str | None = None
    """The name in the client's certificate, where the face has verified one."""
    session: Session | None = None
    """None until CONNECT was accepted."""
    keepalive: int = 0
    will: Will | None = None
    unsent: int = 0
    """Bytes given to the face that have not left it."""
    unsent_after_message: int = 0
    """Bytes given to the face since the last PUBLISH; while `unsent` is more, a part of a PUBLISH has not left."""
    taken_at: float = 0.0
    """Last sign that the client takes messages: part of one left, or one was acknowledged; or since when one waits."""
    drained_at: float = 0.0
    """Last time that bytes left, or since when some wait."""
    paused_at: float | None = None
    """Since when the face does not read from it; None while it does."""
    held_by: "set[Connection]" = field(default_factory=set)
    """Connections that cannot take more of what this one publishes."""
    holds: "dict[Connection, None]" = field(default_factory=dict)
    """The other direction of `held_by`; a dict for its order."""
    traffic: TrafficTally = field(default_factory=TrafficTally)


def held_bytes(message: Publish) -> int:
    """What a waiting message counts against the bounds; the constant keeps a million empty messages from being free."""
    return len(message.topic) + len(message.payload) + 64
