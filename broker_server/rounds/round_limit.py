"""The deadline of the round under way, kept while it cannot have come nearer.

Every message may end a wait, so every message asks for the deadline; a thousand uploads must not each look at a
thousand devices for it.
"""

from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.rounds.collection import Collection
from broker_server.rounds.deadline import Pace, slowest_participant, slowest_to_leave
from broker_server.rounds.herald import Herald
from broker_server.rounds.members import Members


class RoundLimit:
    """Computes `deadline.slowest_participant` for the members of a run."""

    def __init__(self, plan: RunPlan, method: ServerMethod, members: Members, herald: Herald) -> None:
        self._plan, self._method, self._members, self._herald = plan, method, members, herald
        self._slowest: str | None = None
        self._limit: float | None = None
        self._of: object = None
        self._last: tuple[str | None, float] | None = None

    def paces(self) -> dict[str, Pace]:
        """Return what is known of each device."""
        down = self._herald.broadcast_bytes
        return {
            m.device: Pace(m.samples, self._method.upload_limit(m), m.up_rate, m.elapsed_s, down, m.down_rate)
            for m in self._members.joined.values()
        }

    def anew(self, collection: Collection) -> float | None:
        """Return the deadline as it follows from all that is known now; None while nothing is."""
        paces = self.paces()
        found = slowest_participant(self._plan, paces, (d for d in collection.instances if d in paces))
        self._slowest, allowed = found or (None, None)
        self._limit = None if allowed is None else collection.opened_s + allowed
        self._of = self._circumstances(collection)
        return self._limit

    def kept(self, collection: Collection, now: float) -> float | None:
        """Return a moment before which the deadline cannot be, and the deadline itself once it has come.

        Deliveries only move it away, except those of the device that it was made for; whoever joins, leaves or is
        asked may bring it nearer.
        """
        stands = self._slowest is None or self._slowest in collection.outstanding
        if self._limit is not None and now < self._limit and stands and self._of == self._circumstances(collection):
            return self._limit
        return self.anew(collection)

    def farewell_s(self) -> float:
        """Return how long the devices still here may take to leave, as it was last computed: those that leave sooner
        can only shorten it."""
        if self._last is None or (self._last[0] is not None and self._last[0] not in self._members.joined):
            self._last = slowest_to_leave(self._plan, self.paces(), self._members.joined)
        return self._last[1]

    def _circumstances(self, collection: Collection) -> tuple[int, int, int]:
        return collection.round, len(collection.instances), len(self._members.joined)
