"""Typed messages between the processes of an emulation: msgpack over a pipe that never touches an emulated link."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

import msgspec

from edge_client.protocol.messages import Telemetry
from sim.links.proxy import LinkCounters

T = TypeVar("T")


class DeviceTold(msgspec.Struct, frozen=True, tag=True):
    """A device's telemetry of one round."""

    telemetry: Telemetry


class DeviceLog(msgspec.Struct, frozen=True, tag=True):
    """One line of a device, for a person."""

    text: str


class DeviceFailed(msgspec.Struct, frozen=True, tag=True):
    """The device's process gives up, for this reason."""

    reason: str
    traceback: str


class DeviceDone(msgspec.Struct, frozen=True, tag=True):
    """The device lived to the end and has written its model."""


FromDevice = DeviceTold | DeviceLog | DeviceFailed | DeviceDone


class NetworkUp(msgspec.Struct, frozen=True, tag=True):
    """The network is ready: the broker's url for the server, and each device's own port behind its link."""

    broker: str
    ports: dict[str, int]


class NetworkFailed(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Counters(msgspec.Struct, frozen=True, tag=True):
    """What has crossed devices' links so far."""

    links: dict[str, LinkCounters]


FromNetwork = NetworkUp | NetworkFailed | Counters


class CountersPlease(msgspec.Struct, frozen=True, tag=True):
    """Asks the network for `Counters`, of one device's link or of all."""

    device: str | None = None


ToNetwork = CountersPlease


class Pipe(Generic[T]):
    """One end of a pipe whose other end sends messages of the union `T`."""

    def __init__(self, connection: Connection, receives: object) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(receives)

    def send(self, message: msgspec.Struct) -> None:
        """Send; a peer that has gone, or an end that is closed, is noticed by whoever waits for it, not here."""
        with suppress(OSError):
            self._connection.send_bytes(msgspec.msgpack.encode(message))

    def receive(self) -> T:
        """Return the next message; blocks; raises EOFError when the peer has gone."""
        message: T = self._decoder.decode(self._connection.recv_bytes())
        return message

    def listen(self, on_message: Callable[[T], None], on_end: Callable[[], None]) -> None:
        """Call back for every message, from the running loop, until the peer has gone."""
        loop = asyncio.get_running_loop()

        def readable() -> None:
            try:
                while self._connection.poll():
                    loop.call_soon(on_message, self.receive())  # later: what fails in it says nothing about the peer
            except (EOFError, OSError):
                loop.remove_reader(self._connection.fileno())
                self._connection.close()
                loop.call_soon(on_end)

        loop.add_reader(self._connection.fileno(), readable)

    def close(self) -> None:
        self._connection.close()
