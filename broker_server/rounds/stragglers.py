"""Uploads that are of no use any more, or never were: counted with their bytes where they belong. Sans-io.

A late upload belongs to its own round. While that round's record is not written, it goes there with all the rest;
afterwards the record is amended: the upload was called missing and becomes late, and its bytes are added.
"""

from collections import Counter

from broker_server.rounds.actions import Action, Amend
from broker_server.rounds.collection import Collection
from broker_server.rounds.herald import Herald
from broker_server.rounds.ledger import Ledger
from broker_server.study.records import Amendment
from edge_client.protocol.messages import Chunk, Tally


class Stragglers:
    """Answers chunks that come after the close of their round, or that nobody asked for."""

    def __init__(self, herald: Herald, ledger: Ledger, counts: Counter[str]) -> None:
        self._herald, self._ledger, self._counts = herald, ledger, counts
        self._lacking: dict[int, set[str]] = {}

    def recorded(self, collection: Collection) -> None:
        """From now on the record of this round is written; note whose uploads it lacks."""
        self._lacking[collection.round] = {*collection.missing, *collection.late}

    def has_record(self, round: int) -> bool:
        return round in self._lacking

    def after_the_record(self, device: str, round: int, size: int) -> list[Action]:
        """Amend a round. Its device has heard of the next round, or of the end, and need not be told."""
        late = device in self._lacking[round]  # else it repeats what was decided
        counts = {"late": 1, "late_bytes": size} if late else {"stale": 1}
        tally = Tally(direction="up", kind="upload", messages=1, message_bytes=size)
        return [Amend(Amendment(round, device, late, tally, counts))]

    def after_the_close(self, collection: Collection, device: str, chunk: Chunk, size: int) -> list[Action]:
        """Count a late upload; tell its device once."""
        self._ledger.received(device, "upload", size)
        if device in collection.accepted:  # a repetition: the device has not heard of its acceptance
            self._counts["duplicate"] += 1
            return [self._herald.accept(device, collection.round)]
        self._counts["late"] += 1
        self._counts["late_bytes"] += size
        if device in collection.late or device in collection.rejected:
            return []
        collection.late.add(device)
        return [self._herald.reject(device, chunk.round, "late", "the round closed before the upload was complete")]

    def unasked(self, collection: Collection, device: str, size: int) -> list[Action]:
        """Book an upload that the round did not call for; tell its device once."""
        self._ledger.received(device, "upload", size)
        if device in collection.unasked:
            return []
        collection.unasked.add(device)
        why = f"round {collection.round} did not ask this device for an upload"
        return [self._herald.reject(device, collection.round, "invalid", why)]
