"""The server half of a federated method, as the coordinator calls it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edge_client.protocol.codec import Arrays


@dataclass(frozen=True)
class Aggregate:
    """What aggregation gives: the arrays to broadcast, what is worth knowing about them, and what a person must be
    told (a fallback, a reduced K)."""

    broadcast: Arrays
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class ServerMethod(Protocol):
    """Stateless; no topics, sockets or bytes in here. Uploads come in the order of device names."""

    def upload_limit(self, samples: int) -> int:
        """Return the payload bytes that a device with so many records may upload in a round."""
        ...

    def check(self, samples: int, upload: Arrays) -> None:
        """Raise `ProtocolError`, with the reason to tell the device, if an upload cannot be used."""
        ...

    def aggregate(self, round: int, uploads: Mapping[str, Arrays]) -> Aggregate:
        """Return what the cohort receives for these uploads."""
        ...
