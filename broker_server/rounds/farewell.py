"""The end of a run: whom the server waits for, and until when. Sans-io."""

from collections.abc import Iterable

from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.rounds.collection import Collection
from broker_server.rounds.members import Members
from broker_server.rounds.round_limit import RoundLimit
from broker_server.study.records import Outcome
from edge_client.protocol.messages import FAREWELL_S


class Farewell:
    """Asked once the run has ended, with its outcome and its last round."""

    def __init__(self, plan: RunPlan, method: ServerMethod, members: Members, limit: RoundLimit) -> None:
        self._plan, self._method, self._members, self._limit = plan, method, members, limit
        self._deserted_s: float | None = None

    def all_gone(self, outcome: Outcome | None, collection: Collection | None) -> bool:
        """Whether no device that joined is still connected, or cut off while the last broadcast is owed to it. A run
        that failed owes nothing."""
        members = self._members
        if outcome is not None and outcome.completed and collection is None:
            # The server was stopped after the last round: all may still lack its broadcast, and nobody has come yet.
            return not members.anyone_online and len(members.left) >= self._plan.devices
        owed: Iterable[str] = ()
        if collection is not None and outcome is not None and outcome.completed:
            owed = collection.audience if self._method.broadcasts_to_all else collection.accepted
        return not members.anyone_online and not any(device in members.joined for device in owed)

    def due(self, outcome: Outcome, now: float) -> float:
        """Return until when to wait for devices that have not said goodbye: for those that use the last broadcast as
        long as that may take, for those that were cut off no longer than the patience."""
        if not outcome.completed:  # nothing is owed to them; the end stays on the broker
            return outcome.ended_s + FAREWELL_S
        due = outcome.ended_s + self._limit.farewell_s()
        if self._members.anyone_online:
            self._deserted_s = None
            return due
        self._deserted_s = now if self._deserted_s is None else self._deserted_s
        return min(due, self._deserted_s + max(FAREWELL_S, self._plan.patience_s))
