"""How devices behave: messages of no use are counted against their sender, and floods are cut off. Sans-io.

A device past a limit is excluded for the rest of the round: what it sends is counted by its bytes and not read any
more, and an upload that is not accepted yet is refused. What was accepted before was whole and sound, and stays. The
next round asks it again.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from broker_server.members import Members
from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.records import Misconduct
from edge_client.protocol.messages import MAX_CHUNKS
from edge_client.transport.pacing import MIN_CHUNK


@dataclass
class _Deeds:
    """What one device has done since the round was opened. `useless` by reason is what is not written down yet."""

    messages: int = 0
    wasted: int = 0
    useless: Counter[str] = field(default_factory=Counter)
    unread: int = 0


class Conduct:
    """Counts, and says who is excluded from the round under way, and why."""

    def __init__(self, plan: RunPlan, method: ServerMethod, members: Members) -> None:
        self._plan, self._method, self._members = plan, method, members
        self._deeds: dict[str, _Deeds] = defaultdict(_Deeds)
        self.excluded: dict[str, str] = {}
        self._new: dict[str, str] = {}
        self._untold: dict[str, str] = {}

    def new_round(self) -> None:
        """Let everyone begin anew; what is not written down yet is kept for the next record."""
        self.excluded = {}
        for deeds in self._deeds.values():
            deeds.messages = deeds.wasted = 0

    def message(self, device: str) -> None:
        """Count a message that has come."""
        deeds = self._deeds[device]
        deeds.messages += 1
        if deeds.messages > self._plan.message_limit and deeds.messages > (most := self._most(device)):
            self._exclude(device, f"more than {most} messages in one round")

    def useless(self, device: str, reason: str) -> None:
        """Count a message that was of no use."""
        deeds = self._deeds[device]
        deeds.wasted += 1
        deeds.useless[reason] += 1
        if deeds.wasted > self._plan.rubbish_limit:
            told = ", ".join(f"{count} {kind}" for kind, count in sorted(deeds.useless.items()))
            self._exclude(device, f"more than {self._plan.rubbish_limit} messages of no use ({told})")

    def unread(self, device: str) -> None:
        """Count a message of an excluded device."""
        self._deeds[device].unread += 1

    def newly_excluded(self) -> tuple[tuple[str, str], ...]:
        """Return who was excluded since the last call, and why."""
        found, self._new = tuple(self._new.items()), {}
        return found

    def drain(self) -> tuple[Misconduct, ...]:
        """Return, by device, what is to be written down, and start again from zero."""
        found = []
        for device, deeds in sorted(self._deeds.items()):
            if deeds.useless or deeds.unread or device in self._untold:
                found.append(Misconduct(device, dict(sorted(deeds.useless.items())), deeds.unread,
                                        self._untold.get(device, "")))  # fmt: skip
            deeds.useless, deeds.unread = Counter(), 0
        self._untold = {}
        return tuple(found)

    def _exclude(self, device: str, why: str) -> None:
        if device not in self.excluded:
            self.excluded[device] = self._new[device] = self._untold[device] = why

    def _most(self, device: str) -> int:
        """Return how many messages a device may send: two uploads, the last one late, in the smallest chunks, and as
        many besides as the plan says."""
        member = self._members.joined.get(device)
        # However many records it claims to have, and however large an upload of them may be.
        chunks = 0 if member is None else min(MAX_CHUNKS, 1 + self._method.upload_limit(member) // MIN_CHUNK)
        return self._plan.message_limit + 2 * chunks
