"""Who remembers what happened in a run: beside the server, around its method, in each life of a device."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from device.in_memory import Told

from broker_server.methods.base import Aggregate, ServerMethod, Upload
from edge_client.protocol.codec import Arrays
from edge_client.protocol.messages import Tally, Telemetry
from edge_client.session import Fate, Session


def fingerprint(arrays: Arrays) -> bytes:
    return sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))).digest()


@dataclass
class Witness(Told):
    """Remembers what the server made known, and which uploads went into the rounds' aggregates."""

    accepted: list[tuple[int, str]] = field(default_factory=list)

    def uploaded(self, device: str, round: int) -> None:
        self.accepted.append((round, device))


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
