"""How devices behave: messages of no use are counted against their sender, and floods are cut off. Sans-io.

A device past a limit is excluded for the rest of the round: what it sends is counted by its bytes and not read any
more, and an upload that is not accepted yet is refused. What was accepted before was whole and sound, and stays. The
next round asks it again.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.rounds.members import Members
from broker_server.study.records import Misconduct
from edge_client.protocol.messages import MAX_CHUNKS
from edge_client.transport.pacing import MIN_CHUNK
from edge_client.words import counted


@dataclass
class _Deeds:
    """What one device has done since the round was opened. `useless` by reason is what is not written down yet."""

    messages: int = 0
    chunks: int = 0
    long_answers: int = 0
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
            deeds.messages = deeds.chunks = deeds.long_answers = deeds.wasted = 0

    def message(self, device: str, is_chunk: bool = False) -> None:
        """Count a message that has come."""
        deeds, limit = self._deeds[device], self._plan.message_limit
        if not is_chunk:
            deeds.messages += 1
            if deeds.messages > limit:
                self._exclude(device, f"more than {counted(limit, 'message')} in one round")
        else:
            deeds.chunks += 1
            if deeds.chunks > limit and deeds.chunks > (most := limit + self._chunks(device)):
                self._exclude(device, f"more than {counted(most, 'chunk')} in one round")

    def long_answer(self, device: str) -> None:
        """Count a question whose answer is as long as an upload or a broadcast. A connection may break, so that it has
        to be asked again, but not without end."""
        deeds = self._deeds[device]
        deeds.long_answers += 1
        if deeds.long_answers > 1:
            self.useless(device, "asked_again")

    def useless(self, device: str, reason: str) -> None:
        """Count a message that was of no use."""
        deeds = self._deeds[device]
        deeds.wasted += 1
        deeds.useless[reason] += 1
        if deeds.wasted > self._plan.rubbish_limit:
            told = ", ".join(f"{count} {kind}" for kind, count in sorted(deeds.useless.items()))
            self._exclude(device, f"more than {counted(self._plan.rubbish_limit, 'message')} of no use ({told})")

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

    def _chunks(self, device: str) -> int:
        """Return how many chunks a device may have to send: of two uploads, the last one late, in the smallest pieces;
        however many records it claims to have, and however large an upload of them may be."""
        member = self._members.joined.get(device)
        return 0 if member is None else 2 * min(MAX_CHUNKS, 1 + self._method.upload_limit(member) // MIN_CHUNK)
