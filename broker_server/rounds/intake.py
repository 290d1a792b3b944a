"""The uploads of a round, chunk by chunk, to their acceptance or refusal. Sans-io."""

from collections import Counter

from broker_server.methods.base import ServerMethod, Upload
from broker_server.rounds.actions import Accepted, Action, Note
from broker_server.rounds.collection import Collection
from broker_server.rounds.gate import Gate
from broker_server.rounds.herald import Herald
from broker_server.rounds.ledger import Ledger
from broker_server.rounds.members import Member, Members
from broker_server.rounds.stragglers import Stragglers
from edge_client.errors import ProtocolError
from edge_client.protocol.codec import payload_bytes
from edge_client.protocol.messages import Chunk


class Intake:
    """Takes every chunk to where it belongs: the round that is open, one that is over, or none."""

    def __init__(self, method: ServerMethod, members: Members, herald: Herald, ledger: Ledger, gate: Gate,
                 counts: Counter[str]) -> None:  # fmt: skip
        self._method, self._members, self._herald, self._ledger, self._gate = method, members, herald, ledger, gate
        self._stragglers = Stragglers(herald, ledger, counts)

    def take(self, collection: Collection | None, device: str, chunk: Chunk, size: int, now: float) -> list[Action]:
        """Use a chunk of `size` bytes; whoever called decides whether that ends the wait for uploads."""
        member = self._members.joined.get(device)
        if collection is None or member is None or not 0 < chunk.round <= collection.round:
            self._gate.foreign(device, size)
            return []
        if self._stragglers.has_record(chunk.round):
            return self._stragglers.after_the_record(device, chunk.round, size)
        if device not in collection.instances:
            self._gate.useless(device, "unasked")
            return self._stragglers.unasked(collection, device, size)
        if not collection.is_open:
            return self._stragglers.after_the_close(collection, device, chunk, size)
        self._ledger.received(device, "upload", size)
        return self._collect(collection, member, chunk, now)

    def refuse(self, collection: Collection | None, device: str, round: int | None, why: str) -> list[Action]:
        """Go on without an upload that cannot be used, and say so to its device."""
        if collection is None or round != collection.round or device not in collection.outstanding:
            return []
        collection.reject(device, why)
        note = Note(f"round {round}: upload of {device} refused: {why}")
        return [note, self._herald.reject(device, round, "invalid", why)]

    def recorded(self, collection: Collection) -> None:
        """From now on the record of this round is written: what still comes for it amends that."""
        self._stragglers.recorded(collection)

    def _collect(self, collection: Collection, member: Member, chunk: Chunk, now: float) -> list[Action]:
        device = member.device
        if device in collection.rejected:
            self._gate.useless(device, "rejected")
            return []
        try:
            if not collection.add(device, chunk, self._method.upload_limit(member)):
                self._gate.useless(device, "duplicate")
                return self._accept_again(collection, device)
            if (upload := collection.upload(device)) is None:
                return []
            self._method.check(member, upload)
        except ProtocolError as error:
            return self.refuse(collection, device, chunk.round, str(error))
        collection.accept(device, Upload(member.samples, member.input_dim, upload))
        self._ledger.complete(device, payload_bytes(upload))
        self._members.delivered(device, now - collection.opened_s)
        return [self._herald.accept(device, chunk.round), Accepted(chunk.round, device)]

    def _accept_again(self, collection: Collection, device: str) -> list[Action]:
        """A repetition after acceptance means that the device has not heard of it."""
        return [self._herald.accept(device, collection.round)] if device in collection.accepted else []
