"""The embedded broker: the core behind asyncio's TCP and TLS sockets.

One event loop, no threads. A payload is one object however many clients it goes to; it is written in slices, and
the next slice only when the socket has taken the last one, so a slow client costs a reference and not a copy.
"""

import asyncio
import logging
import os
import socket
import ssl as tls
import sys
from collections import deque
from collections.abc import Iterable
from itertools import count

from broker_server.broker.access import Authentication, Authorisation
from broker_server.broker.core import Broker
from broker_server.broker.counters import Counters
from broker_server.broker.effects import Close, Effect, Pause, Resume, Send, Warn
from broker_server.broker.encode import encode_parts
from broker_server.broker.limits import Limits
from broker_server.broker.packets import ConnAck, Connect, MalformedPacket, Packet, PacketTooLarge
from broker_server.broker.parse import PacketParser
from broker_server.broker.tls import common_name
from edge_client.clock import Clock, RealClock
from edge_client.errors import EnvironmentFault

_log = logging.getLogger(__name__)

_SLICE = 256 * 1024  # bytes given to a socket at once
_SMALL = 4 * 1024  # payloads up to here are joined with their neighbours into one write
_BACKLOG = 4096  # a fleet connects all at once; the kernel clips this to its own maximum
_SEND_BUFFER = 256 * 1024  # kernel memory for each connection; the default grows to megabytes for a stalled client
_CONNECT_LIMIT = 400_000  # bytes of a CONNECT with all five fields at their maximum, before anybody is known
_TICK = 0.5  # seconds
_LINGER = 5.0  # seconds for the last bytes of a closed connection
_REFUSALS = 60.0  # seconds between two lines about one refused client, which comes back and back
_REFUSED_NAMES = 1000  # names remembered for that; whoever invents more of them is told of more often
_SIOCOUTQ = 0x5411  # Linux: bytes in the send queue that the peer has not acknowledged


class TcpBroker:
    """MQTT 3.1.1 over TCP or TLS.

    Args:
        authentication: who may connect; everybody by default.
        authorisation: who may use which topics; everybody every one by default.
        limits: all bounds.
        clock: only asked for the time; the sockets live in real time.
    """

    def __init__(
        self,
        authentication: Authentication | None = None,
        authorisation: Authorisation | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.core = Broker(authentication, authorisation, self.limits)
        self._clock = clock or RealClock()
        self._peers: dict[int, _Peer] = {}
        self._unflushed: dict[_Peer, None] = {}
        self._ids = count(1)
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._refused: dict[str, float] = {}

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, ssl: tls.SSLContext | None = None) -> int:
        """Listen and return the port, which the system chooses if `port` is 0.

        Raises:
            EnvironmentFault: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Peer(self, next(self._ids)), host, port, ssl=ssl, backlog=_BACKLOG
            )
        except OSError as error:
            number = error.errno or 0  # below zero for a name that cannot be resolved
            why = os.strerror(number) if number > 0 else error.strerror or error  # asyncio's text has the address again
            raise EnvironmentFault(f"cannot listen on {host}:{port}: {why}; choose another host or port") from error
        self._ticking = loop.create_task(self._tick_for_ever(), name="broker tick")
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and drop all connections; sessions and retained messages are gone."""
        if self._server is None or self._ticking is None:
            return
        self._server.close()
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.transport.abort()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn of the loop
        await self._server.wait_closed()
        self._server = self._ticking = None

    async def __aenter__(self) -> "TcpBroker":
        if self._server is None:
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def port(self) -> int:
        """The bound port, 0 while not listening."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server is not None else 0

    @property
    def counters(self) -> Counters:
        """A snapshot; MQTT bytes, without TLS and TCP."""
        return self.core.counters()

    def now(self) -> float:
        return self._clock.now()

    # Called by the peers

    def opened(self, peer: "_Peer") -> None:
        self._peers[peer.id] = peer
        self._obey(self.core.opened(peer.id, self.now(), peer.certified))

    def received(self, peer: "_Peer", data: bytes) -> None:
        now = self.now()
        try:
            self.core.bytes_seen(peer.id, len(data), now)
            for packet in peer.parser.feed(data):
                if isinstance(packet, Connect):
                    peer.client_id = packet.client_id
                self._obey(self.core.received(peer.id, packet, now))
                if peer.id not in self._peers:
                    break
            self._settle()
        except MalformedPacket as error:
            _log.info("connection %s closed: %s", peer.name, error)
            self._fail(peer, "too large" if isinstance(error, PacketTooLarge) else "malformed")
        except Exception:
            # A broken invariant may be this client's doing; the others must not pay for it.
            _log.exception("internal error; connection %s closed", peer.name)
            self._fail(peer, "internal error")

    def writable(self, peer: "_Peer") -> None:
        self._unflushed[peer] = None
        self._settle()

    def lost(self, peer: "_Peer") -> None:
        if self._peers.pop(peer.id, None) is not None:
            self._obey(self.core.lost(peer.id, self.now()))
            self._settle()

    # Effects

    def _obey(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Warn):
                _log.warning("%s", effect.message)
                continue
            peer = self._peers.get(effect.connection)
            if peer is None:
                continue
            match effect:
                case Send():
                    peer.enqueue(effect.packet)
                    self._unflushed[peer] = None
                case Close():
                    _log.info("connection %s closed: %s", peer.name, effect.reason)
                    if effect.reason.startswith("refused"):
                        self._tell_refusal(peer, effect.reason)
                    del self._peers[peer.id]
                    peer.finish()
                case Pause():
                    peer.transport.pause_reading()
                case Resume():
                    peer.transport.resume_reading()

    def _tell_refusal(self, peer: "_Peer", reason: str) -> None:
        """Tell the operator who was not let in, and why; each client once a minute."""
        now, key = self.now(), f"{peer.client_id} {reason}"
        if now - self._refused.get(key, -_REFUSALS) < _REFUSALS:
            return
        if len(self._refused) >= _REFUSED_NAMES:
            self._refused.clear()
        self._refused[key] = now
        certified = "" if peer.certified is None else f", certified as {peer.certified[:64]!r}"
        _log.warning("client %r%s, connection %s: %s", peer.client_id[:64], certified, peer.name, reason)

    def _settle(self) -> None:
        """Write what was enqueued, once for each peer, and tell the core what has left, which may free more."""
        while self._unflushed:
            peer, _ = self._unflushed.popitem()
            peer.flush()
            self._report(peer)

    def _report(self, peer: "_Peer") -> None:
        if (left := peer.newly_left()) and peer.id in self._peers:
            self._obey(self.core.drained(peer.id, left, self.now()))

    def _fail(self, peer: "_Peer", reason: str) -> None:
        try:
            self._obey(self.core.failed(peer.id, reason, self.now()))
            self._settle()
        except Exception:
            _log.exception("internal error while closing connection %s", peer.name)
        if self._peers.pop(peer.id, None) is not None:
            peer.transport.abort()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            try:
                for peer in list(self._peers.values()):
                    if peer.shows_progress():
                        self._obey(self.core.drained(peer.id, peer.newly_left(), self.now()))
                self._obey(self.core.tick(self.now()))
                self._settle()
            except Exception:
                _log.exception("internal error in the broker's tick; the broker goes on")


class _Peer(asyncio.Protocol):
    """One socket: bytes in, slices out."""

    transport: asyncio.Transport

    def __init__(self, broker: TcpBroker, number: int) -> None:
        self.id = number
        self.name = f"#{number}"
        self.certified: str | None = None
        self.client_id = ""
        self.parser = PacketParser(min(_CONNECT_LIMIT, broker.limits.max_packet_size))
        self._broker = broker
        self._large: deque[memoryview] = deque()
        self._small = bytearray()
        self._blocked = False
        self._written = 0
        self._left = 0
        self._kernel_queue = 0

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # `pause_writing` as soon as the socket leaves anything over; asyncio's TLS never resumes with `high` = 0.
        transport.set_write_buffer_limits(high=1, low=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.name = f"#{self.id} from {transport.get_extra_info('peername')}"
        self.certified = common_name(transport.get_extra_info("peercert"))
        self._broker.opened(self)

    def data_received(self, data: bytes) -> None:
        self._broker.received(self, data)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._broker.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.lost(self)

    # From the broker

    def enqueue(self, packet: Packet) -> None:
        """Put a packet behind the others; large payloads by reference."""
        if isinstance(packet, ConnAck) and not packet.code:
            self.parser.max_packet_size = self._broker.limits.max_packet_size
        head, payload = encode_parts(packet)
        self._small += head
        if len(payload) <= _SMALL:
            self._small += payload
            if len(self._small) > _SLICE:
                self._seal()
        else:
            self._seal()
            self._large.append(memoryview(payload))

    def flush(self) -> None:
        """Write until the socket takes no more."""
        while not self._blocked and not self.transport.is_closing():
            if self._large:
                piece = self._large.popleft()
                if len(piece) > _SLICE:
                    self._large.appendleft(piece[_SLICE:])
                    piece = piece[:_SLICE]
                self._write(piece)
            elif self._small:
                piece, self._small = memoryview(self._small), bytearray()
                self._write(piece)
            else:
                return

    def newly_left(self) -> int:
        """Return the bytes that have left this process since the last call."""
        left = self._written - self.transport.get_write_buffer_size()
        new, self._left = left - self._left, left
        return new

    def shows_progress(self) -> bool:
        """True if there are bytes to send and the other side has taken some since the last call.

        Between two wake-ups of a socket with a slow link lie many seconds. Linux also says how much the other side has
        acknowledged; elsewhere only whole wake-ups are seen, and `stall_timeout` should be set with that in mind.
        """
        if not self._blocked or self.transport.is_closing():
            self._kernel_queue = 0
            return False
        before, self._kernel_queue = self._kernel_queue, self._unacknowledged()
        return self._kernel_queue < before or self._written - self.transport.get_write_buffer_size() > self._left

    def finish(self) -> None:
        """Close after the last bytes, but do not wait long for a client that does not take them."""
        self.flush()
        if self._large or self._small:
            self.transport.abort()
        else:
            self.transport.close()
            asyncio.get_running_loop().call_later(_LINGER, self.transport.abort)

    def _write(self, piece: memoryview) -> None:
        self._written += len(piece)
        self.transport.write(piece)

    def _seal(self) -> None:
        if self._small:
            self._large.append(memoryview(self._small))
            self._small = bytearray()

    def _unacknowledged(self) -> int:
        if sys.platform != "linux":
            return 0
        import fcntl  # absent on Windows

        answer = bytearray(4)
        try:
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), _SIOCOUTQ, answer)
        except OSError:
            return 0  # the socket is being closed; nothing is known about progress
        return int.from_bytes(answer, sys.byteorder)


async def serve(
    host: str,
    port: int,
    *,
    authentication: Authentication | None = None,
    authorisation: Authorisation | None = None,
    limits: Limits | None = None,
    ssl: tls.SSLContext | None = None,
    ready: "asyncio.Future[int] | None" = None,
) -> None:
    """Run a broker until cancelled; `ready` gets the bound port.

    Raises:
        EnvironmentFault: the address cannot be bound.
    """
    broker = TcpBroker(authentication, authorisation, limits)
    bound = await broker.start(host, port, ssl=ssl)
    try:
        if ready is not None:
            ready.set_result(bound)
        await asyncio.Event().wait()
    finally:
        await broker.close()
