"""What may reach the coordinator at all: messages of this run, of the type that belongs to their topic, from the device
that the topic names. Sans-io.

A broker with access rules lets a device write only below its own topics, so the name in the topic is who a message
is from; all that is amiss is counted against that name. Names that nobody has heard of are let in until there are far
more than the run has devices: on a broker without rules anybody can invent them, and each costs memory.
"""

from collections import Counter
from typing import NamedTuple

from broker_server.plan import RunPlan
from broker_server.rounds.conduct import Conduct
from broker_server.rounds.echoes import Echoes
from broker_server.rounds.ledger import Ledger
from broker_server.rounds.members import Members
from edge_client.errors import ProtocolError
from edge_client.protocol import topics
from edge_client.protocol.codec import decode
from edge_client.protocol.lives import life_in
from edge_client.protocol.messages import SERVER, Chunk, Header, Join, Presence, Probe, RoundState
from edge_client.protocol.topics import Address


class Letter(NamedTuple):
    """A message that may be used, from this device, with its size in bytes."""

    device: str
    address: Address
    message: Header
    size: int


class Flawed(NamedTuple):
    """A message that cannot be used, and why."""

    device: str
    address: Address
    why: str


class Stranger(NamedTuple):
    """A message under a name for which there is no room, and its wish to join if it is one."""

    join: Join | None


class Rumour(NamedTuple):
    """What another server of this run's name announces, or asks."""

    message: RoundState | Probe


class Gate:
    """Opens messages, and counts what it keeps out."""

    def __init__(self, plan: RunPlan, members: Members, ledger: Ledger, counts: Counter[str], conduct: Conduct,
                 echoes: Echoes) -> None:  # fmt: skip
        self._echoes = echoes
        self._plan, self._members, self._ledger, self._counts, self._conduct = plan, members, ledger, counts, conduct
        self._has_heard_itself = False
        self._kept_by_broker: bytes | None = None

    def open(self, topic: str, payload: bytes, retained: bool = False) -> Letter | Flawed | Stranger | Rumour | None:
        """Return the message; None if it needs no answer."""
        try:
            address = topics.parse(topic, self._plan.run)
        except ProtocolError:
            address = Address(Header)
        if address.kind is RoundState or (address.kind is Probe and address.device == SERVER):
            return self._of_a_server(address, payload, retained)
        if (device := address.device) is None or device == SERVER:
            self._counts["foreign"] += 1  # no device's: one that calls itself the server, or none of our topics
            return None
        if not payload and address.kind is Presence:  # a retained message being cleared
            return None
        if not self._members.meet(device):
            return self._stranger(address, payload)
        self._conduct.message(device, address.kind is Chunk)
        if device in self._conduct.excluded and address.kind is not Presence:  # whether it is there must be known
            self._ledger.received(device, "ignored", len(payload))
            self._conduct.unread(device)
            return None
        try:
            message = decode(payload, address.kind)
            if message.device != device:
                raise ProtocolError(f"a message of {message.device!r} on a topic of {device!r}")
        except ProtocolError as error:
            self._counts["malformed"] += 1
            self._conduct.useless(device, "malformed")
            self._ledger.received(device, "ignored", len(payload))
            return Flawed(device, address, str(error))
        if message.run != self._plan.name and not (isinstance(message, Join | Presence) and self._is_kin(message)):
            self.foreign(device, len(payload))
            return None
        return Letter(device, address, message, len(payload))

    def foreign(self, device: str, size: int) -> None:
        """Count a message, with its bytes, that does not concern this run or a round of it."""
        self._ledger.received(device, "ignored", size)
        self.useless(device, "foreign")

    def useless(self, device: str, reason: str) -> None:
        """Count a message, the bytes of which are counted, that tells nothing."""
        self._counts[reason] += 1
        self._conduct.useless(device, reason)

    def _of_a_server(self, address: Address, payload: bytes, retained: bool) -> Rumour | None:
        """Return what is not our own, come back to us, and is news.

        What others have announced before our own words came back is none: it may have been waiting for the client id
        that we share with a server that is dead. What the broker has kept proves no life either, as it may have come
        back from an old memory of its own; but whoever is alive has said something else by our next connection. The
        bytes are counted as a stranger's are; those of our own words are not: no device sent them."""
        try:
            message = decode(payload, address.kind)
        except ProtocolError:
            message = None
        if not isinstance(message, RoundState | Probe) or not self._is_of_a_server(message):
            self._counts["foreign"] += 1
            self._ledger.received(SERVER, "ignored", len(payload))
            return None
        if self._is_our_own(message, payload):
            self._has_heard_itself |= isinstance(message, RoundState)
            return None
        self._ledger.received(SERVER, "ignored", len(payload))
        if retained:
            known, self._kept_by_broker = self._kept_by_broker, payload
            if known in (None, payload):
                return None
        return Rumour(message) if self._has_heard_itself or isinstance(message, Probe) else None

    def _is_of_a_server(self, message: Header) -> bool:
        """Whether it says that a server of this run's name sent it."""
        return message.device == SERVER and life_in(message.run, self._plan.run) is not None

    def _is_our_own(self, message: RoundState | Probe, payload: bytes) -> bool:
        if message.run != self._plan.name:
            return False
        if isinstance(message, Probe):
            return message.instance == self._plan.instance
        return self._echoes.holds(message, payload)

    def _is_kin(self, message: Header) -> bool:
        """Whether its sender knows only the run's name yet, or an earlier life of this server."""
        life = life_in(message.run, self._plan.run)
        return message.run == self._plan.run or (life is not None and life.incarnation == self._plan.incarnation)

    def _stranger(self, address: Address, payload: bytes) -> Stranger:
        self._counts["stranger"] += 1
        self._ledger.received(SERVER, "ignored", len(payload))  # a name of its own in the ledgers would cost memory
        try:
            join = decode(payload, Join) if address.kind is Join else None
        except ProtocolError:
            join = None
        return Stranger(join if join is not None and join.device == address.device else None)
