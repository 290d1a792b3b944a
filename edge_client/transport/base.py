"""What the protocol needs of a message transport, and nothing more."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct


class Incoming(Struct, frozen=True):
    """A delivered message. `retained`: it is older than the subscription. `token` is for `acknowledge`."""

    topic: str
    payload: bytes
    retained: bool = False
    token: object = None


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained and with QoS 1, when the connection ends without a goodbye."""

    topic: str
    payload: bytes


class Transport(Protocol):
    """One established connection. After it breaks, every call raises `ConnectionLost`; a new one must be made."""

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Send; with QoS 1 return when the broker has acknowledged. Waits as long as the connection lives."""
        ...

    async def subscribe(self, *filters: str) -> None:
        """Ask for these topics with QoS 1; raises `EnvironmentFault` when the broker refuses."""
        ...

    async def unsubscribe(self, *filters: str) -> None: ...

    def messages(self) -> AsyncIterator[Incoming]:
        """Yield messages in order; ends by raising `ConnectionLost`."""
        ...

    def acknowledge(self, message: Incoming) -> None:
        """Tell the broker that the message was dealt with; until then its window holds further ones back."""
        ...


@dataclass(frozen=True)
class Settings:
    """Of one connection. `persistent`: the broker keeps subscriptions and queued messages while we are away."""

    client_id: str
    will: Will | None = None
    keepalive: int = 60
    persistent: bool = False


Connect = Callable[[Settings], AbstractAsyncContextManager[Transport]]
"""Opens a connection; raises `ConnectionLost` when none can be had now, `EnvironmentFault` when never."""
