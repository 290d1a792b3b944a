"""The network of a fleet in memory: the broker core, and for each device a link up and a link down.

This is the broker's second face (the first is `broker_server.broker.tcp`) and the counterpart of `sim.links.proxy`:
opening a connection is not shaped, closing it travels behind the bytes, and the counters are the proxy's. Packets
are values and are never encoded; their sizes are. What has been handed to a link counts as taken from the broker,
as behind a socket with room.

It asks its loop for the time only, so it runs in real and in virtual time alike.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count

from broker_server.broker.core import Broker
from broker_server.broker.effects import Close, Effect, Pause, Resume, Send, Warn
from broker_server.broker.limits import Limits
from broker_server.broker.packets import Packet
from edge_client.transport.base import Connect, Settings, Transport
from sim.fleet.lane import Lane, Wire
from sim.fleet.transport import MemoryTransport
from sim.links.link import JitterKey
from sim.links.profiles import LinkProfile, downlink, uplink
from sim.links.proxy import LinkCounters, direction_counters


class Network:
    """One broker and the links to it. Needs a running loop. Outages count from here, where the run has gone on for
    `began_s` seconds already.

    `warn` gets the broker's warnings, one line each.
    """

    def __init__(self, links: Mapping[str, LinkProfile], seed: int, warn: Callable[[str], None] = lambda text: None,
                 limits: Limits | None = None, began_s: float = 0.0) -> None:  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._core, self._warn = Broker(limits=limits, roomy=True), warn
        origin = self._loop.time() - began_s
        self._links = {device: _Link(device, profile, seed, self._loop, origin) for device, profile in links.items()}
        self._wire = Wire(self._loop)
        self._peers: dict[int, _Peer] = {}
        self._numbers = count(1)
        self._later = getattr(self._loop, "call_in_background", self._loop.call_at)
        self._pressing: asyncio.TimerHandle | None = None

    # ---- for clients --------------------------------------------------------------------------------------------

    def behind(self, device: str) -> Connect:
        """Return the `Connect` of a device, behind its link."""
        link = self._links[device]

        @asynccontextmanager
        async def connect(settings: Settings) -> AsyncIterator[Transport]:
            link.accepted += 1
            transport = self._open(settings, link.up, link.down, link.open)
            try:
                await transport.greet()
                yield transport
            finally:
                transport.close()

        return connect

    @asynccontextmanager
    async def beside(self, settings: Settings) -> AsyncIterator[Transport]:
        """The `Connect` of the server, beside the broker: neither shaped nor counted."""
        transport = self._open(settings, self._wire, self._wire, {})
        try:
            await transport.greet()
            yield transport
        finally:
            transport.close()

    # ---- for the study ------------------------------------------------------------------------------------------

    def counters(self, device: str | None = None) -> dict[str, LinkCounters]:
        """Return what has crossed a device's link, or each."""
        asked = self._links if device is None else {device: self._links[device]}
        return {
            name: LinkCounters(
                link.accepted, direction_counters(link.up, link.down), direction_counters(link.down, link.up)
            )
            for name, link in asked.items()
        }

    def cut(self, device: str) -> None:
        """Cut all connections of a device at once, on both sides; what is on its way is lost."""
        for peer in list(self._links[device].open):
            peer.up.drop(peer)
            peer.client.lose("cut")
            self._lost(peer)

    # ---- connections --------------------------------------------------------------------------------------------

    def _open(
        self, settings: Settings, up: Lane | Wire, down: Lane | Wire, shared: "dict[_Peer, None]"
    ) -> MemoryTransport:
        peer = _Peer(self, next(self._numbers), up, down)

        def gone() -> None:
            """The client's end is over: it takes nothing any more, and the broker learns behind what was sent."""
            shared.pop(peer, None)
            down.drop(peer.client)
            up.send(peer, None, 0)

        peer.client = MemoryTransport(settings, up, down, peer, self._loop, gone)
        shared[peer] = None
        self._peers[peer.id] = peer
        self._obey(self._core.opened(peer.id, self._loop.time()))
        self._watch(peer)
        return peer.client

    def arrived(self, peer: "_Peer", packet: Packet | None, size: int) -> None:
        """A packet has come from a client, or the end of its stream."""
        if peer.held is not None:
            peer.held.append((packet, size))
        elif peer.id not in self._peers:
            return
        elif packet is None:
            self._lost(peer)
        else:
            now = self._loop.time()
            self._core.bytes_seen(peer.id, size, now)
            self._obey(self._core.received(peer.id, packet, now))

    def _lost(self, peer: "_Peer") -> None:
        if self._peers.pop(peer.id, None) is not None:
            self._end_watch(peer)
            self._obey(self._core.lost(peer.id, self._loop.time()))

    def _obey(self, effects: Iterable[Effect]) -> None:
        """Carry out what the core wants."""
        peers = self._peers
        for effect in effects:
            if isinstance(effect, Send):
                if (peer := peers.get(effect.connection)) is not None:
                    peer.down.send(peer.client, effect.packet, effect.size)
            elif isinstance(effect, Warn):
                self._warn(effect.message)
            elif (peer := peers.get(effect.connection)) is None:
                continue
            elif isinstance(effect, Close):
                del peers[peer.id]
                self._end_watch(peer)
                peer.down.send(peer.client, None, 0)
            elif isinstance(effect, Pause):
                peer.held = peer.held or deque()
                self._press()
            elif isinstance(effect, Resume):
                self._loop.call_soon(self._resume, peer)

    # ---- what the core does when time passes --------------------------------------------------------------------

    def _watch(self, peer: "_Peer") -> None:
        """Look after a connection again when it would end if nothing happened: most often something has by then."""
        due = self._core.deadline(peer.id)
        if due is not None:
            peer.watch = self._later(due, self._look, peer)

    def _look(self, peer: "_Peer") -> None:
        now = self._loop.time()
        if peer.up.trickling:
            self._core.bytes_seen(peer.id, 0, now)
        due = self._core.deadline(peer.id)
        if due is not None and due <= now:
            self._obey(self._core.tick(now, peer.id))
        if peer.id in self._peers:
            self._watch(peer)

    def _end_watch(self, peer: "_Peer") -> None:
        if peer.watch is not None:
            peer.watch.cancel()
            peer.watch = None

    def _press(self) -> None:
        """While somebody is held back, tick the core when it says so: packets are let through now and then."""
        due = self._core.next_deadline()
        if self._pressing is None and due is not None:
            self._pressing = self._loop.call_at(max(due, self._loop.time()), self._tick)

    def _tick(self) -> None:
        self._pressing = None
        self._obey(self._core.tick(self._loop.time()))
        if any(peer.held is not None for peer in self._peers.values()):
            self._press()

    def _resume(self, peer: "_Peer") -> None:
        """Read what has come while the peer was held, until it is held again."""
        held, peer.held = peer.held or deque(), None
        while held and peer.held is None:
            self.arrived(peer, *held.popleft())
        if held:
            peer.held = deque([*held, *(peer.held or ())])


class _Link:
    """A device's lanes, how many connections they have carried, and those that are open."""

    __slots__ = ("accepted", "down", "open", "up")

    def __init__(self, device: str, profile: LinkProfile, seed: int, loop: asyncio.AbstractEventLoop,
                 origin: float) -> None:  # fmt: skip
        self.up = Lane(uplink(profile), JitterKey(seed, "jitter-up", device), loop, origin)
        self.down = Lane(downlink(profile), JitterKey(seed, "jitter-down", device), loop, origin)
        if profile.half_duplex:
            self.up.take_turns(self.down)
        self.accepted = 0
        self.open: dict[_Peer, None] = {}  # a dict for its order


class _Peer:
    """The broker's end of a connection. `held`: what has come while the broker does not read; None while it does."""

    __slots__ = ("client", "down", "held", "id", "network", "up", "watch")
    client: MemoryTransport

    def __init__(self, network: Network, number: int, up: Lane | Wire, down: Lane | Wire) -> None:
        self.network, self.id, self.up, self.down = network, number, up, down
        self.held: deque[tuple[Packet | None, int]] | None = None
        self.watch: asyncio.TimerHandle | None = None

    def deliver(self, packet: Packet | None, size: int) -> None:
        self.network.arrived(self, packet, size)
