"""A face for the core that keeps packets instead of writing them: a test decides what each client reads and when."""

from collections import defaultdict, deque
from itertools import count

from broker_server.broker import packets as mqtt
from broker_server.broker.core import Broker
from broker_server.broker.effects import Close, Effect, Pause, Resume, Send, Warn
from broker_server.broker.encode import encoded_size


class MemoryFace:
    """Time is `now`, moved by the test."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.now = 0.0
        self.unread: defaultdict[int, deque[Send]] = defaultdict(deque)
        self.paused: set[int] = set()
        self.closed: dict[int, str] = {}
        self.warnings: list[str] = []
        self._ids = count(1)

    def open(self, connect: mqtt.Connect | None = None) -> int:
        """Open a connection and, if asked, have it accepted."""
        connection = next(self._ids)
        self._obey(self.broker.opened(connection, self.now))
        if connect is not None:
            self.send(connection, connect)
            assert isinstance(self.read(connection)[0], mqtt.ConnAck)
        return connection

    def send(self, connection: int, packet: mqtt.Packet) -> None:
        self.broker.bytes_seen(connection, encoded_size(packet), self.now)
        self._obey(self.broker.received(connection, packet, self.now))

    def read(self, connection: int, most: int = 10**9, *, acknowledge: bool = True) -> list[mqtt.Packet]:
        """Take up to `most` packets, acknowledging messages."""
        got: list[mqtt.Packet] = []
        while self.unread[connection] and len(got) < most:
            effect = self.unread[connection].popleft()
            got.append(effect.packet)
            self._obey(self.broker.drained(connection, effect.size, self.now))
            if acknowledge and isinstance(effect.packet, mqtt.Publish) and effect.packet.qos:
                self.send(connection, mqtt.PubAck(effect.packet.packet_id))
        return got

    def messages(self, connection: int, *, acknowledge: bool = True) -> list[mqtt.Publish]:
        return [p for p in self.read(connection, acknowledge=acknowledge) if isinstance(p, mqtt.Publish)]

    def lose(self, connection: int) -> None:
        self._obey(self.broker.lost(connection, self.now))

    def wait(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass in ticks."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            self._obey(self.broker.tick(self.now))

    def _obey(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    assert effect.connection not in self.closed, "sent to a closed connection"
                    assert effect.size == encoded_size(effect.packet)
                    self.unread[effect.connection].append(effect)
                case Close():
                    assert effect.connection not in self.closed, "closed twice"
                    self.closed[effect.connection] = effect.reason
                    self.paused.discard(effect.connection)
                case Pause():
                    assert effect.connection not in self.paused, "paused twice"
                    self.paused.add(effect.connection)
                case Resume():
                    self.paused.remove(effect.connection)
                case Warn():
                    self.warnings.append(effect.message)
