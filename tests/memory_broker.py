"""A broker in memory behind the `Transport` seam: small, faithful, and easy to hurt.

It keeps what the protocol relies on: order per sender, QoS 1 (what a persistent session has not acknowledged comes
again), retained messages, last wills, take-over of a client id. Every connection can be cut at any moment, also
between the delivery of a message and its acknowledgement.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from edge_client.errors import ConnectionLost
from edge_client.transport.base import Incoming, Settings

Fault = Literal["cut before", "cut after", "swallow"]


@dataclass
class Session:
    """What the broker keeps of one client id: its filters, and all messages it has not acknowledged, in order."""

    filters: set[str] = field(default_factory=set)
    unacknowledged: dict[int, Incoming] = field(default_factory=dict)
    link: "MemoryTransport | None" = None


@dataclass(frozen=True)
class Seen:
    """One message that reached the broker."""

    client: str
    topic: str
    payload: bytes
    retain: bool


class MemoryBroker:
    """`faults` is asked for every publish (client id, topic) and may have the connection cut before or after the
    broker has the message, or have the message swallowed though it is acknowledged."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, bytes] = {}
        self.seen: list[Seen] = []
        self.connections: list[str] = []
        self.faults: Callable[[str, str], Fault | None] = lambda client, topic: None
        self.running = True
        self.heard = asyncio.Event()  # the first message
        self._next_id = 0

    @asynccontextmanager
    async def connect(self, settings: Settings) -> AsyncIterator["MemoryTransport"]:
        """The `Connect` of this broker."""
        await asyncio.sleep(0)
        if not self.running:
            raise ConnectionLost("no connection to memory: the broker is away")
        session = self.sessions.get(settings.client_id)
        if session is not None and session.link is not None:
            self.cut(settings.client_id)
        if session is None or not settings.persistent:
            session = self.sessions[settings.client_id] = Session()
        self.connections.append(settings.client_id)
        link = session.link = MemoryTransport(self, session, settings)
        for message in session.unacknowledged.values():
            link.arrive(message)
        try:
            yield link
        finally:
            if link.alive:  # a goodbye in order: the will is dropped
                self._forget(link)

    def cut(self, client_id: str) -> None:
        """Break a client's connection without a goodbye; its will is published."""
        session = self.sessions.get(client_id)
        if session is None or session.link is None:
            return
        link = session.link
        self._forget(link)
        if link.settings.will is not None:
            self.publish(client_id, link.settings.will.topic, link.settings.will.payload, retain=True)

    async def restart(self, away_s: float = 0.0) -> None:
        """Go away and come back having forgotten everything, as a broker without persistence; no will goes out."""
        self.running = False
        for session in list(self.sessions.values()):
            if session.link is not None:
                self._forget(session.link)
        self.sessions.clear()
        self.retained.clear()
        await asyncio.sleep(away_s)
        self.running = True

    def online(self, prefix: str = "") -> list[str]:
        """The connected client ids that begin so."""
        return [name for name, session in self.sessions.items() if session.link and name.startswith(prefix)]

    def publish(self, client: str, topic: str, payload: bytes, *, retain: bool) -> None:
        self.seen.append(Seen(client, topic, payload, retain))
        self.heard.set()
        if retain:
            self.retained[topic] = payload
            if not payload:
                del self.retained[topic]
        for session in self.sessions.values():
            if any(matches(one, topic) for one in session.filters):
                self._deliver(session, topic, payload, retained=False)

    def send_retained(self, session: Session, filters: Iterable[str]) -> None:
        for topic, payload in self.retained.items():
            if any(matches(one, topic) for one in filters):
                self._deliver(session, topic, payload, retained=True)

    def _deliver(self, session: Session, topic: str, payload: bytes, *, retained: bool) -> None:
        self._next_id += 1
        message = Incoming(topic, payload, retained, self._next_id)
        session.unacknowledged[self._next_id] = message
        if session.link is not None:
            session.link.arrive(message)

    def _forget(self, link: "MemoryTransport") -> None:
        link.broken.set()
        if link.session.link is link:
            link.session.link = None
            if not link.settings.persistent:
                self.sessions.pop(link.settings.client_id, None)


class MemoryTransport:
    """One connection to the broker."""

    def __init__(self, broker: MemoryBroker, session: Session, settings: Settings) -> None:
        self.broker, self.session, self.settings = broker, session, settings
        self.broken = asyncio.Event()
        self._inbox: deque[Incoming] = deque()
        self._news = asyncio.Event()

    @property
    def alive(self) -> bool:
        return not self.broken.is_set()

    def arrive(self, message: Incoming) -> None:
        self._inbox.append(message)
        self._news.set()

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        self._check()
        fault = self.broker.faults(self.settings.client_id, topic)
        if fault == "cut before":
            self.broker.cut(self.settings.client_id)
        elif fault != "swallow":
            self.broker.publish(self.settings.client_id, topic, payload, retain=retain)
        if fault == "cut after":
            self.broker.cut(self.settings.client_id)
        await asyncio.sleep(0)
        self._check()

    async def subscribe(self, *filters: str) -> None:
        self._check()
        self.session.filters.update(filters)
        self.broker.send_retained(self.session, filters)
        await asyncio.sleep(0)
        self._check()

    async def unsubscribe(self, *filters: str) -> None:
        self._check()
        self.session.filters.difference_update(filters)
        await asyncio.sleep(0)

    async def messages(self) -> AsyncIterator[Incoming]:
        while True:
            self._check()
            while self._inbox and self.alive:
                yield self._inbox.popleft()
            self._news.clear()
            waits = {asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(self.broken.wait())}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def acknowledge(self, message: Incoming) -> None:
        if self.alive and isinstance(message.token, int):
            self.session.unacknowledged.pop(message.token, None)

    def _check(self) -> None:
        if not self.alive:
            raise ConnectionLost("connection to memory lost")


def matches(pattern: str, topic: str) -> bool:
    """Whether an MQTT filter ('+' one level, '#' the rest) takes in this topic."""
    levels, names = pattern.split("/"), topic.split("/")
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= len(names) or level not in ("+", names[index]):
            return False
    return len(levels) == len(names)
