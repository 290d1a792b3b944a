"""What a run is, from the server's side; fixed before it starts."""

from dataclasses import dataclass, field
from typing import Literal

from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol.chunks import MAX_CHUNK


@dataclass(frozen=True)
class RunPlan:
    """`run` is the topic name, `incarnation` (8 hex digits) this server's life of it.

    participation: fraction phi of the joined devices that takes part in a round.
    minimum_devices: how many must have joined before round 1; quorum: how many uploads a round needs to count.
    patience_s: how long the server waits for that minimum, and for stragglers beyond what is expected of them.
    deadline_s: seconds from the opening of a round to its close, or "auto": `grace` times what bytes, links and the
    training seen so far let expect of the slowest, plus the patience.
    """

    run: str
    incarnation: str
    method: str
    seed: int
    rounds: int
    hyper: Hyperparameters = field(default_factory=Hyperparameters)
    participation: float = 1.0
    minimum_devices: int = 1
    quorum: int = 1
    patience_s: float = 60.0
    deadline_s: float | Literal["auto"] = "auto"
    grace: float = 3.0
    chunk_size: int = MAX_CHUNK

    @property
    def name(self) -> str:
        """The run as messages name it."""
        return f"{self.run}.{self.incarnation}"
