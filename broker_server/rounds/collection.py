"""The uploads of one round: who was asked, what has come, what is outstanding. Sans-io."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_server.methods.base import Upload
from edge_client.cohort import EVERYONE
from edge_client.protocol.chunks import Reassembly
from edge_client.protocol.codec import MAX_BODY, Arrays, decode_arrays
from edge_client.protocol.messages import Chunk, Cohort, Standing

ENVELOPE = 4096
"""Bytes a body may have beyond its tensors: names, shapes and msgpack's framing."""


@dataclass
class Collection:
    """One round from its opening to its close. `instances` are the processes that were asked: of a device that
    restarted in the middle, the new one. `audience` are those that will hear the
    broadcast: the same, or all that had joined by then; `left_out` were away for too long to be drawn. `wanted` is
    how many uploads are enough; None: all that may come. It takes uploads until `closed_s`; `deserted_s` is since when
    everyone outstanding has been away."""

    round: int
    cohort: Cohort
    instances: dict[str, str]
    opened_s: float
    audience: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)
    wanted: int | None = None
    closed_s: float | None = None
    deserted_s: float | None = None
    outstanding: dict[str, None] = field(init=False)
    """The devices that may still deliver, in the order they were asked."""
    parts: dict[str, Reassembly] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    uploads: dict[str, Upload] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    unasked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.outstanding = dict.fromkeys(self.instances)

    def ask(self, device: str, instance: str) -> None:
        """Call one more process of a device."""
        self.instances[device] = self.audience[device] = instance
        if device not in self.accepted and device not in self.rejected and device not in self.gone:
            self.outstanding[device] = None

    def ask_again(self, device: str, instance: str) -> None:
        """Call a device's new process in place of its old one; a part of an upload that came from that is void."""
        self.gone.discard(device)
        self.parts.pop(device, None)
        self.ask(device, instance)

    def give_up(self, device: str) -> None:
        """Wait no longer for a device: it has gone, or does not know of the round."""
        self.gone.add(device)
        self.outstanding.pop(device, None)

    @property
    def is_open(self) -> bool:
        """Whether it still takes uploads."""
        return self.closed_s is None

    @property
    def enough(self) -> bool:
        """Whether there are as many uploads as the round wants."""
        return self.wanted is not None and len(self.accepted) >= self.wanted

    @property
    def missing(self) -> tuple[str, ...]:
        """The devices that were asked and have delivered nothing usable, neither in time nor late."""
        decided = {*self.accepted, *self.rejected, *self.late}
        return tuple(device for device in self.instances if device not in decided)

    def add(self, device: str, chunk: Chunk, limit: int) -> bool:
        """Take a chunk; return False for a duplicate. Raises `ProtocolError` when it cannot be part of an upload of
        at most `limit` tensor bytes."""
        if device in self.accepted:
            return False
        return self.parts.setdefault(device, Reassembly(min(limit + ENVELOPE, MAX_BODY))).add(chunk)

    def upload(self, device: str) -> Arrays | None:
        """Return a device's upload once all its chunks are here; raises `ProtocolError` if they do not make one."""
        parts = self.parts[device]
        return decode_arrays(parts.body(), parts.limit) if parts.complete else None

    def accept(self, device: str, upload: Upload) -> None:
        self.accepted.add(device)
        self.outstanding.pop(device, None)
        self.uploads[device] = upload
        self.parts.pop(device, None)

    def hand_over(self) -> dict[str, Upload]:
        """Return the accepted uploads in the order of device names, and let go of them: they may be large."""
        uploads, self.uploads = self.uploads, {}
        return {device: uploads[device] for device in sorted(uploads)}

    def reject(self, device: str, reason: str) -> None:
        self.rejected[device] = reason
        self.outstanding.pop(device, None)
        self.parts.pop(device, None)

    def standing(self, device: str) -> Standing:
        """Answer a device that asks what became of its upload."""
        if device in self.accepted:
            return Standing(self.round, "accepted")
        if device in self.rejected:
            return Standing(self.round, "rejected")
        if not self.is_open or device not in self.instances:
            return Standing(self.round, "closed")
        parts = self.parts.get(device)
        return Standing(self.round, "partial", parts.missing) if parts else Standing(self.round, "unseen")


def over(round: int, accepted: Iterable[str], rejected: Iterable[str] = ()) -> Collection:
    """Return a round that is over, with the fates of its uploads and nothing else."""
    return Collection(round, EVERYONE, {}, 0.0, {}, closed_s=0.0, accepted=set(accepted),
                      rejected=dict.fromkeys(rejected, ""))  # fmt: skip
