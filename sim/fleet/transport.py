"""A client's end of a connection in memory: the `Transport` seam, with the packets and habits of the real client.

The keepalive is paho's: a PINGREQ once nothing was sent, or nothing received, for so long; if the answer and
everything else stays out for as long again, the client gives the connection up.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import cycle
from typing import Any

from broker_server.broker.encode import encoded_size
from broker_server.broker.packets import (
    SUBSCRIPTION_REFUSED,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from edge_client.errors import ConnectionLost, EnvironmentFault
from edge_client.transport.base import Incoming, Settings
from sim.fleet.lane import Lane, Receiver, Wire

Later = Callable[..., asyncio.TimerHandle]


class MemoryTransport:
    """One connection. `broker` is its other end; `gone` is called once, when this end is over."""

    def __init__(self, settings: Settings, up: Lane | Wire, down: Lane | Wire, broker: Receiver,
                 loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:  # fmt: skip
        self._settings, self._up, self._down, self._broker = settings, up, down, broker
        self._loop, self._gone = loop, gone
        self._ids = cycle(range(1, 65_536))
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._inbox: deque[Incoming] = deque()
        self._news: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._welcome: asyncio.Future[ConnAck] = loop.create_future()
        self._last_out = self._last_in = loop.time()
        self._asked_at: float | None = None  # the PINGREQ that waits for its answer
        self._timer: asyncio.TimerHandle | None = None
        # A timer that only keeps a connection alive must not keep a simulation alive.
        self._later: Later = getattr(loop, "call_in_background", loop.call_at)

    # ---- the seam -----------------------------------------------------------------------------------------------

    async def greet(self) -> None:
        """Send CONNECT and wait for the answer."""
        settings = self._settings
        will = Will(settings.will.topic, settings.will.payload, 1, True) if settings.will else None
        self._send(Connect(settings.client_id, not settings.persistent, settings.keepalive, will))
        answer = await self._welcome
        if answer.code:
            raise EnvironmentFault(f"the broker in memory refuses {settings.client_id}: {answer.code.name.lower()}")
        if settings.keepalive:
            self._timer = self._later(self._loop.time() + settings.keepalive, self._keep_alive)

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        if not qos:
            self._check()
            self._send(Publish(topic, payload, 0, retain))
            return
        await self._ask(lambda packet_id: Publish(topic, payload, 1, retain, False, packet_id))

    async def subscribe(self, *filters: str) -> None:
        requests = tuple((one, 1) for one in filters)
        granted: SubAck = await self._ask(lambda packet_id: Subscribe(packet_id, requests))
        if SUBSCRIPTION_REFUSED in granted.codes:
            refused = filters[granted.codes.index(SUBSCRIPTION_REFUSED)]
            raise EnvironmentFault(f"the broker in memory refuses the subscription to {refused}")

    async def unsubscribe(self, *filters: str) -> None:
        await self._ask(lambda packet_id: Unsubscribe(packet_id, filters))

    async def messages(self) -> AsyncIterator[Incoming]:
        while True:
            self._check()
            if self._inbox:
                yield self._inbox.popleft()
            else:
                self._news = self._loop.create_future()
                await self._news

    def acknowledge(self, message: Incoming) -> None:
        if self._lost is None and message.token:
            self._send(PubAck(message.token))  # type: ignore[arg-type]

    # ---- the connection -----------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._lost is None

    def close(self) -> None:
        """Say goodbye, if there is still somebody to say it to."""
        if self._lost is None:
            self._send(Disconnect())
            self._end("closed")

    def lose(self, why: str) -> None:
        """The connection is no more; every call says so from now on."""
        if self._lost is None:
            self._end(why)

    def deliver(self, packet: Packet | None, size: int) -> None:
        """Take a packet from the broker; None is the end of the stream."""
        if self._lost is not None:
            return
        self._last_in = self._loop.time()
        match packet:
            case Publish():
                self._inbox.append(Incoming(packet.topic, packet.payload, packet.retain, packet.packet_id))
                if self._news is not None and not self._news.done():
                    self._news.set_result(None)
            case PubAck() | SubAck() | UnsubAck():
                answer = self._answers.pop(packet.packet_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(packet)
            case PingResp():
                self._asked_at = None
            case ConnAck() if not self._welcome.done():
                self._welcome.set_result(packet)
            case None:
                self._end("the broker has closed it")

    async def _ask(self, compose: Callable[[int], Packet]) -> Any:
        """Send a packet and wait for its acknowledgement."""
        self._check()
        packet_id = next(self._ids)
        while packet_id in self._answers:
            packet_id = next(self._ids)
        answer = self._answers[packet_id] = self._loop.create_future()
        self._send(compose(packet_id))
        return await answer

    def _send(self, packet: Packet) -> None:
        self._last_out = self._loop.time()
        self._up.send(self._broker, packet, encoded_size(packet))

    def _keep_alive(self) -> None:
        now, patience = self._loop.time(), self._settings.keepalive
        if self._down.trickling:
            self._last_in = now
        due = min(self._last_out, self._last_in) + patience  # sums only: a difference may be rounded to less
        if due <= now:
            if self._asked_at is not None and self._last_in + patience <= now:
                self._end("no answer from the broker within the keepalive")
                return
            if self._asked_at is None or self._asked_at + patience <= now:
                self._send(PingReq())
                self._asked_at = now
            self._last_in = self._last_out = now
            due = now + patience
        self._timer = self._later(due, self._keep_alive)

    def _check(self) -> None:
        if self._lost is not None:
            raise ConnectionLost(f"connection to the broker in memory lost: {self._lost}")

    def _end(self, why: str) -> None:
        self._lost = why
        if self._timer is not None:
            self._timer.cancel()
        for waiting in (self._welcome, *self._answers.values()):
            if not waiting.done():
                waiting.set_exception(ConnectionLost(f"connection to the broker in memory lost: {why}"))
                waiting.exception()  # whoever waits gets it; nobody has to
        self._answers.clear()
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self._gone()
