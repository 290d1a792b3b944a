"""A TCP proxy on loopback that is a device's link: it delays, paces and counts every byte in both directions.

The link belongs to the device: all its connections share one lane up and one lane down (`sim.links.lane`). Opening a
connection is not shaped, and closing it is only delayed. Loss caps the rate and nothing more, as a proxy that ends TCP
on both sides cannot lose segments.

Counting: `stream_bytes` are TCP payload bytes that crossed; they are counted when they leave, so a reset may keep the
last of them from arriving. `wire_bytes` add the header of every segment. `ack_bytes` are the pure acknowledgements that
travel in a direction for the segments of the other one: one of `header` bytes for every two (RFC 1122, 4.2.3.2),
counted but not paced.
"""

import asyncio
import logging
import socket
from typing import Protocol

import msgspec

from edge_client.clock import Clock
from edge_client.errors import EnvironmentFault
from sim.links.connection import Connection, Endpoint
from sim.links.lane import Lane, buffer_size
from sim.links.link import JitterKey
from sim.links.profiles import LinkProfile, downlink, uplink

log = logging.getLogger(__name__)

BACKLOG = 4096
"""Pending connections; asyncio's 100 makes hundreds of devices that start together retry after a second."""


class DirectionCounters(msgspec.Struct, frozen=True):
    """Bytes and segments of one direction; see the module's text."""

    stream_bytes: int
    wire_bytes: int
    segments: int
    ack_bytes: int


class LinkCounters(msgspec.Struct, frozen=True):
    """What crossed a device's link since the proxy started. `connections`: accepted, open or not."""

    connections: int
    up: DirectionCounters
    down: DirectionCounters


class ShapingProxy:
    """The link of one device: listens on 127.0.0.1 and forwards to an upstream host.

    Outages count from `start`, where the run has gone on for `began_s` seconds already. Jitter depends on (seed,
    direction, segment number, device).
    """

    def __init__(
        self, profile: LinkProfile, upstream_host: str, upstream_port: int, *, clock: Clock, seed: int, device: str,
        began_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._profile = profile
        self._upstream = (upstream_host, upstream_port)
        self._clock, self._began_s = clock, began_s
        self._origin = clock.now()
        self._up = Lane(uplink(profile), JitterKey(seed, "jitter-up", device), self._now)
        self._down = Lane(downlink(profile), JitterKey(seed, "jitter-down", device), self._now)
        if profile.half_duplex:
            self._up.take_turns(self._down)
        self._connections: set[Connection] = set()
        self._accepted = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen, and return the port. Raises EnvironmentFault if the upstream's name or a socket is not to be had."""
        loop = asyncio.get_running_loop()
        host, port = self._upstream
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self._family, self._address = found[0][0], found[0][4]
            listener = _small_socket(socket.AF_INET, buffer_size(self._profile.up), buffer_size(self._profile.down))
            listener.bind(("127.0.0.1", 0))
            self._server = await loop.create_server(self._accept, sock=listener, backlog=BACKLOG)
        except OSError as error:
            raise EnvironmentFault(f"link to {host}:{port}: {error}; check the broker's address") from error
        self._origin = self._clock.now() - self._began_s
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and reset all connections; return when they are gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        gone = [connection.gone for connection in self._connections]
        self.reset_connections()
        await asyncio.gather(*gone)
        self._up.stop()
        self._down.stop()

    def reset_connections(self) -> None:
        """Cut all connections at once, with a reset to both sides."""
        for connection in list(self._connections):
            connection.reset()

    def counters(self) -> LinkCounters:
        """Return what crossed so far."""
        return LinkCounters(
            self._accepted, direction_counters(self._up, self._down), direction_counters(self._down, self._up)
        )

    def _now(self) -> float:
        return self._clock.now() - self._origin

    def _accept(self) -> Endpoint:
        self._accepted += 1
        connection = Connection(self._up, self._down, self._dial)
        self._connections.add(connection)
        connection.gone.add_done_callback(lambda _: self._connections.discard(connection))
        return connection.client

    async def _dial(self, server: Endpoint) -> None:
        """Connect `server` to the upstream; the device sees a failure as the reset that a dead broker gives."""
        loop = asyncio.get_running_loop()
        sock = _small_socket(self._family, buffer_size(self._profile.down), buffer_size(self._profile.up))
        try:
            await loop.sock_connect(sock, self._address)
            await loop.create_connection(lambda: server, sock=sock)
        except OSError as error:
            log.warning("link to %s:%d: %s; the device's connection is reset", *self._upstream, error)
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise


class Counted(Protocol):
    """One direction of a link, as far as its bytes go."""

    stream_bytes: int
    wire_bytes: int

    @property
    def segments(self) -> int: ...

    @property
    def header(self) -> int: ...


def direction_counters(lane: Counted, other: Counted) -> DirectionCounters:
    """Return what crossed a direction, with the acknowledgements for what crossed the other one."""
    acks = -(-other.segments // 2) * other.header
    return DirectionCounters(lane.stream_bytes, lane.wire_bytes, lane.segments, acks)


def _small_socket(family: int, receive: int, send: int) -> socket.socket:
    """Return a socket whose kernel buffers add little to the lane's, so that a sender feels the link.

    The sizes must be set before listen or connect: they bound the window that TCP announces.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive // 2)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock
