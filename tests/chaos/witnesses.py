"""Who remembers what happened in a run: beside the server, around its method, in each life of a device."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from device.in_memory import Told

from broker_server.methods.base import Aggregate, ServerMethod, Upload
from broker_server.study.start import Start
from edge_client.conversation.session import Fate, Session
from edge_client.protocol.codec import Arrays
from edge_client.protocol.messages import Tally, Telemetry


def fingerprint(arrays: Arrays) -> bytes:
    return sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))).digest()


@dataclass
class Witness(Told):
    """Remembers what the server made known, and which uploads went into the rounds' aggregates."""

    accepted: list[tuple[int, str]] = field(default_factory=list)
    reached: Start = field(default_factory=Start)

    def checkpoint(self, reached: Start) -> None:
        super().checkpoint(reached)
        self.reached = reached

    def forget_later(self) -> None:
        """Forget what was made known of a round that was not over when the server's process died."""
        self.accepted = [(round, device) for round, device in self.accepted if round <= self.reached.completed]

    def uploaded(self, device: str, round: int) -> None:
        self.accepted.append((round, device))


class Life:
    """The ear of one life of the server: once it is dead, nothing of it is heard any more."""

    def __init__(self, witness: Witness) -> None:
        self.witness, self.dead = witness, False

    def __getattr__(self, name: str) -> Any:
        return (lambda *told: None) if self.dead else getattr(self.witness, name)


@dataclass
class Spy:
    """A server half that remembers which uploads it was given."""

    half: ServerMethod
    given: list[tuple[int, dict[str, bytes]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.half, name)

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None) -> Aggregate:
        self.given.append((round, {device: fingerprint(upload.arrays) for device, upload in uploads.items()}))
        return self.half.aggregate(round, uploads, previous)

    def forget_later(self, completed: int) -> None:
        self.given = [(round, uploads) for round, uploads in self.given if round <= completed]


class Watched(Session):
    """A device's session that remembers what it was given to upload, by round."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.uploads: dict[int, bytes] = {}

    async def upload(self, round: int, arrays: Arrays) -> Fate:
        self.uploads[round] = fingerprint(arrays)
        return await super().upload(round, arrays)


@dataclass
class Process:
    """One life of a device."""

    name: str
    session: Watched
    reports: list[Telemetry] = field(default_factory=list)
    dead: bool = False
    task: "asyncio.Task[Any] | None" = None
    error: BaseException | None = None

    @property
    def sent(self) -> tuple[Tally, ...]:
        """What it counted, once it has ended."""
        return tuple(tally for report in self.reports for tally in report.tallies)
