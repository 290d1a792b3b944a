"""The network of a fleet, with hands that break it."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from chaos.faults import Fault
from msgspec.structs import replace

from broker_server.broker.core import Broker
from edge_client.errors import ConnectionLost
from edge_client.transport.base import Connect, Incoming, Settings, Transport
from sim.fleet.network import Network
from sim.links.profiles import LinkProfile

SERVER_SIDE = ""
"""Stands for the server where a device's name would."""


@dataclass
class Tampering:
    """What is to happen to single messages of one client, and what has."""

    twice_until: float = 0.0
    next_up: list[float] = field(default_factory=list)
    """Places at which the next messages that it sends are corrupted."""
    next_broadcast: list[float] = field(default_factory=list)
    doubled_messages: int = 0
    """Of what it sent."""
    heard_twice: Counter[str] = field(default_factory=Counter)
    """Of what it was sent: how many messages, by the device in the topic."""


class BrittleNetwork(Network):
    """A `Network` whose connections, messages and broker can be hurt at any moment."""

    def __init__(self, links: Mapping[str, LinkProfile], seed: int) -> None:
        super().__init__(links, seed)
        self.tampering: dict[str, Tampering] = defaultdict(Tampering)
        self.happened: Counter[str] = Counter()
        self.broker_away = False

    # ---- for clients --------------------------------------------------------------------------------------------

    def behind(self, device: str) -> Connect:
        return self._hurt(device, super().behind(device))

    @asynccontextmanager
    async def beside(self, settings: Settings) -> AsyncIterator[Transport]:
        async with self._hurt(SERVER_SIDE, super().beside)(settings) as transport:
            yield transport

    def _hurt(self, name: str, connect: Connect) -> Connect:
        @asynccontextmanager
        async def brittle(settings: Settings) -> AsyncIterator[Transport]:
            if self.broker_away:
                raise ConnectionLost("no connection to the broker in memory: it is away")
            async with connect(settings) as transport:
                yield _Tampered(transport, self.tampering[name], self)

        return brittle

    # ---- for the faults -----------------------------------------------------------------------------------------

    def half_open(self, device: str) -> None:
        """End a device's connections on its side alone; the broker hears nothing any more."""
        for peer in list(self._links[device].open):
            peer.client._gone = lambda: None
            peer.up.drop(peer)
            peer.down.drop(peer.client)
            del self._links[device].open[peer]
            peer.client.lose("half-open")

    def cut_server(self) -> None:
        """Cut the server's connection."""
        of_devices = {peer.id for link in self._links.values() for peer in link.open}
        for peer in list(self._peers.values()):
            if peer.id not in of_devices and peer.client._settings.persistent:
                peer.client.lose("cut")
                self._lost(peer)

    def break_broker(self, *, remembering: bool) -> None:
        """End the broker's process. No last will goes out; with memory, the retained messages and the sessions that
        were to be kept are those of the next one."""
        old = self._core
        peers, self._peers = list(self._peers.values()), {}
        self._core, self.broker_away = Broker(limits=old._limits, roomy=True), True
        if remembering:
            self._core._retained = old._retained
            for name, session in old._sessions.items():
                if not session.clean:
                    session.connection = None
                    self._core._sessions[name] = session
                    for pattern, granted in session.subscriptions.items():
                        self._core._subscriptions.add(pattern, name, granted)
        for peer in peers:
            self._end_watch(peer)
            peer.up.drop(peer)
            peer.client.lose("the broker has ended")

    def mend_broker(self) -> None:
        self.broker_away = False


class _Tampered:
    """A client's connection, and what happens to single messages on it."""

    def __init__(self, inner: Transport, tampering: Tampering, network: BrittleNetwork) -> None:
        self._inner, self._tampering, self._network = inner, tampering, network
        self.subscribe, self.unsubscribe = inner.subscribe, inner.unsubscribe

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        tampering = self._tampering
        if tampering.next_up:
            self._network.happened["corrupt"] += 1
            payload = corrupted(payload, tampering.next_up.pop(0))
        if self._doubling:
            tampering.doubled_messages += 1
            await self._inner.publish(topic, payload, qos=qos, retain=retain)
        await self._inner.publish(topic, payload, qos=qos, retain=retain)

    async def messages(self) -> AsyncIterator[Incoming]:
        async for message in self._inner.messages():
            if "/bc/" in message.topic and self._tampering.next_broadcast:
                self._network.happened["corrupt broadcast"] += 1
                place = self._tampering.next_broadcast.pop(0)
                yield Incoming(message.topic, corrupted(message.payload, place), message.retained, message.token)
                continue
            if self._doubling:
                device = message.topic.split("/")[4] if message.topic.count("/") > 3 else ""
                self._tampering.heard_twice[device] += 1
                yield Incoming(message.topic, message.payload, message.retained, None)
            yield message

    def acknowledge(self, message: Incoming) -> None:
        if message.token is not None:
            self._inner.acknowledge(message)

    @property
    def _doubling(self) -> bool:
        return self._network._loop.time() < self._tampering.twice_until


def corrupted(payload: bytes, place: float) -> bytes:
    """Return the bytes with one of them changed."""
    if not payload:
        return b"\xc1"
    index = int(place * len(payload))
    return payload[:index] + bytes([payload[index] ^ (1 + int(place * 7919) % 255)]) + payload[index + 1 :]


def with_outages(profile: LinkProfile, faults: Iterable[Fault]) -> LinkProfile:
    """Return a device's link with what the faults keep from crossing it."""
    apart: list[tuple[float, float]] = []
    for begin, end in sorted((f.at, f.at + f.seconds) for f in faults if f.kind in ("partition", "delay", "reorder")):
        if apart and begin <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((begin, end))
    return replace(profile, outages=tuple(apart))
