"""The server half of a federated method, as the coordinator calls it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edge_client.protocol.codec import Arrays


class Sender(Protocol):
    """What a device told of itself when it joined: how many records it trains on (N_i), and their width d_x."""

    @property
    def samples(self) -> int: ...

    @property
    def input_dim(self) -> int: ...


@dataclass(frozen=True)
class Upload:
    """An accepted upload, with what its sender had told of itself."""

    samples: int
    input_dim: int
    arrays: Arrays


@dataclass(frozen=True)
class Aggregate:
    """What aggregation gives: the arrays to broadcast, what is worth knowing about them, and what a person must be
    told (a fallback, a reduced K). `packed` is what travels in place of `broadcast`, where a codec stands between."""

    broadcast: Arrays
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    packed: Arrays | None = None

    @property
    def travels(self) -> Arrays:
        """The arrays that go over the wire."""
        return self.broadcast if self.packed is None else self.packed


class ServerMethod(Protocol):
    """Stateless; no topics, sockets or bytes in here. Uploads come in the order of device names."""

    @property
    def broadcasts_to_all(self) -> bool:
        """Whether devices that take no part in a round hear its broadcast too: as the device half says."""
        ...

    def upload_limit(self, sender: Sender) -> int:
        """Return the payload bytes that this device may upload in a round; raises `ConfigError` if its records are
        none that the method's model could take."""
        ...

    def check(self, sender: Sender, upload: Arrays) -> None:
        """Raise `ProtocolError`, with the reason to tell the device, if an upload cannot be used."""
        ...

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None) -> Aggregate:
        """Return what the cohort receives for these uploads. `previous` is the broadcast of the round before, None
        in round 1."""
        ...
