"""What a run is, from the server's side; fixed before it starts."""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import ValidationError, convert

from broker_server.study.start import Start
from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol.chunks import MAX_CHUNK
from edge_client.protocol.lives import Life
from edge_client.protocol.messages import Name


@dataclass(frozen=True)
class RunPlan:
    """`run` is the topic name, `incarnation` (8 hex digits) tells it from others of that name, and `life` from earlier
    lives of its server (`edge_client/protocol/lives.py`).

    participation: fraction phi of the joined devices that takes part in a round. over_selection: how many times as many
    are asked; a round that asks more than it wants closes when as many uploads as it wants are in.
    devices: how many are expected; round 1 waits up to `join_s` (None: `patience_s`) for all of them and then goes on
    with those it has, if they are at least `minimum_devices`. quorum: how many uploads a round needs to count.
    input_dim: the width of a record; None: that of most devices (`width.py`).
    patience_s is also what stragglers get beyond what is expected of them.
    deadline_s: seconds from the opening of a round to its close, or "auto": `grace` times what bytes, links and the
    training seen so far let expect of the slowest, plus the patience, but never more than `deadline_limit_s`: devices
    that take all the time they are given would be given more each round.
    rubbish_limit: how many messages of no use a device may send in a round; message_limit: how many messages, beside
    the chunks of its uploads.
    instance: 8 hex digits of this process, by which it is told from another that goes on with a copy of the same study.
    start: where a run goes on that was stopped before.
    """

    run: str
    incarnation: str
    method: str
    seed: int
    rounds: int
    hyper: Hyperparameters = field(default_factory=Hyperparameters)
    participation: float = 1.0
    over_selection: float = 1.0
    devices: int = 1
    minimum_devices: int = 1
    quorum: int = 1
    patience_s: float = 60.0
    join_s: float | None = None
    input_dim: int | None = None
    deadline_s: float | Literal["auto"] = "auto"
    deadline_limit_s: float = 86_400.0
    grace: float = 3.0
    chunk_size: int = MAX_CHUNK
    rubbish_limit: int = 100
    message_limit: int = 1000
    life: int = 0
    instance: str = "00000000"
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a run that messages could not name."""
        try:
            convert(f"{self.run}.{self.incarnation}", Name)
        except ValidationError:
            raise ConfigError(
                f"run name {self.run!r}: use 1 to 55 letters, digits, '.', '_' or '-', the first a letter or digit"
            ) from None

    @property
    def joining_s(self) -> float:
        """How long round 1 waits for devices."""
        return self.patience_s if self.join_s is None else self.join_s

    @property
    def name(self) -> str:
        """The run as messages name it."""
        return f"{self.run}.{Life(self.incarnation, self.life)}"
