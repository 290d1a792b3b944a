"""What the coordinator wants done. It does nothing itself; `server.py` carries these out."""

from collections.abc import Mapping
from dataclasses import dataclass

from broker_server.methods.base import Upload
from broker_server.study.records import Amendment, Closing, Outcome, RoundRecord
from broker_server.study.start import Start
from edge_client.protocol.codec import Arrays
from edge_client.protocol.messages import Telemetry


@dataclass(frozen=True)
class Publish:
    """Send one encoded message with QoS 1."""

    topic: str
    payload: bytes
    retain: bool = False


@dataclass(frozen=True)
class Aggregate:
    """Run the method's aggregation over a round's accepted uploads, off the event loop. `previous` is the broadcast
    of the round before."""

    round: int
    uploads: Mapping[str, Upload]
    previous: Arrays | None = None


@dataclass(frozen=True)
class Opened:
    """A round was opened for so many devices."""

    round: int
    devices: int


@dataclass(frozen=True)
class Accepted:
    """A device's upload of this round is in."""

    round: int
    device: str


@dataclass(frozen=True)
class Record:
    """Write down a finished round."""

    record: RoundRecord


@dataclass(frozen=True)
class Checkpoint:
    """Keep where the run stands after a round, what its aggregation gave included."""

    reached: Start


@dataclass(frozen=True)
class Observe:
    """Write down what a device reported of itself."""

    telemetry: Telemetry


@dataclass(frozen=True)
class Note:
    """Tell a person, in one line."""

    text: str


@dataclass(frozen=True)
class Amend:
    """Correct what was written down of a finished round."""

    amendment: Amendment


@dataclass(frozen=True)
class Closed:
    """Write down what came after the last round."""

    closing: Closing


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    outcome: Outcome


@dataclass(frozen=True)
class Superseded:
    """Another server has the run: `why` says so to a person, who started both. `at_once`: say nothing more, not even
    goodbye, as it would be heard as the other's."""

    why: str
    at_once: bool = False


Action = (
    Checkpoint
    | Publish
    | Opened
    | Accepted
    | Aggregate
    | Record
    | Amend
    | Observe
    | Note
    | Closed
    | Superseded
    | Finish
)
