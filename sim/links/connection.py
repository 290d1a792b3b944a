"""A device's TCP connection through the proxy: two sockets and a flow each way, with half-close and reset passed on."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

from sim.links.lane import Ending, Flow, Lane

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, for zero seconds: close sends RST


class Endpoint(asyncio.Protocol):
    """One of the two sockets. `outgoing` takes what its peer sends; `incoming` brings what its peer shall get."""

    outgoing: Flow
    incoming: Flow

    def __init__(self, made: Callable[[], None], lost: Callable[[], None]) -> None:
        self._made = made
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._got_eof = False
        self._sent_eof = False

    @property
    def is_open(self) -> bool:
        """Whether the socket is connected."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._made()

    def data_received(self, data: bytes) -> None:
        self.outgoing.lane.feed(self.outgoing, data)

    def eof_received(self) -> bool:
        self._got_eof = True
        self.outgoing.lane.end(self.outgoing, Ending.EOF)
        self._close_if_done()
        return True  # the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is not None:
            self.outgoing.lane.end(self.outgoing, Ending.RESET)
        self.incoming.lane.drop(self.incoming)
        self._lost()

    def pause_writing(self) -> None:
        self.incoming.lane.block(self.incoming)

    def resume_writing(self) -> None:
        self.incoming.lane.unblock(self.incoming)

    def pause(self) -> None:
        """Stop reading, so that TCP tells the peer to wait."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send to the peer."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self, ending: Ending) -> None:
        """Close the peer's side as the other peer closed its own."""
        if ending is Ending.RESET:
            self.reset()
        elif self._transport is not None and not self._transport.is_closing():
            self._sent_eof = True
            self._transport.write_eof()
            self._close_if_done()

    def reset(self) -> None:
        """Cut the socket with a TCP reset; what it had not sent is lost."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()

    def _close_if_done(self) -> None:
        if self._got_eof and self._sent_eof and self._transport is not None:
            self._transport.close()


class Connection:
    """Joins the device's socket (`client`) to one that `dial` connects to the upstream (`server`).

    `gone` is set when both sockets are closed and `dial` has returned.
    """

    def __init__(self, up: Lane, down: Lane, dial: Callable[[Endpoint], Awaitable[None]]) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client = Endpoint(self._client_made, self._settle)
        self.server = Endpoint(self._server_made, self._settle)
        self.client.outgoing = self.server.incoming = Flow(up, self.client, self.server)
        self.server.outgoing = self.client.incoming = Flow(down, self.server, self.client)
        self._dial = dial
        self._dialling: asyncio.Task[None] | None = None
        self._cut = False

    def reset(self) -> None:
        """Cut both sides at once; what is on its way is lost."""
        self._cut = True
        for flow in (self.client.outgoing, self.server.outgoing):
            flow.lane.drop(flow)
        self.client.reset()
        self.server.reset()
        if self._dialling is not None:
            self._dialling.cancel()

    def _client_made(self) -> None:
        if self._cut:
            self.client.reset()
            return
        self.client.pause()  # until there is somebody to talk to
        self._dialling = asyncio.get_running_loop().create_task(self._dial_upstream(), name="link: dial upstream")
        self._dialling.add_done_callback(lambda _: self._settle())

    async def _dial_upstream(self) -> None:
        await self._dial(self.server)
        if not self.server.is_open:
            self.client.reset()

    def _server_made(self) -> None:
        if self.client.is_open:
            self.client.resume()
        else:
            self.server.reset()

    def _settle(self) -> None:
        dialled = self._dialling is None or self._dialling.done()
        if dialled and not self.client.is_open and not self.server.is_open and not self.gone.done():
            self.gone.set_result(None)
