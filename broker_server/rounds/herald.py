"""The server's own messages: composed, numbered, counted in the ledger, and handed over as `Publish` actions."""

from collections.abc import Iterable
from typing import Literal

from broker_server.plan import RunPlan
from broker_server.rounds.actions import Publish
from broker_server.rounds.collection import Collection
from broker_server.rounds.echoes import Echoes
from broker_server.rounds.ledger import Ledger
from broker_server.rounds.past import Broadcast, Past
from edge_client.protocol import topics
from edge_client.protocol.chunks import split
from edge_client.protocol.codec import Arrays, encode, encode_arrays, payload_bytes
from edge_client.protocol.messages import (
    SERVER,
    Accept,
    Cohort,
    Header,
    Join,
    Probe,
    Reject,
    RoundState,
    Standing,
    Welcome,
)
from edge_client.transport.pacing import chunk_size


class Herald:
    """Composes every message of the server. Broadcasts are kept in `past`, to be sent again, and announcements in
    `echoes`, to be known again."""

    def __init__(self, plan: RunPlan, ledger: Ledger, past: Past) -> None:
        self._plan, self._ledger, self._past, self.echoes = plan, ledger, past, Echoes()
        start = plan.start
        # Devices that join again are welcomed again; then numbers, and so the sizes of messages, are as they were.
        self._seq = max(0, start.seq - 1 - plan.devices) if start.completed else 0
        self._last_round, self._last_size = 0, 0
        self._announced: bytes | None = None

    @property
    def broadcast_bytes(self) -> int:
        """Bytes of the last broadcast's body, 0 before the first."""
        return self._last_size

    @property
    def seq(self) -> int:
        """The number of the next message."""
        return self._seq

    def state(self, state: Literal["waiting", "open", "ended"], round: int, audience: Iterable[str], *,
              cohort: Cohort | None = None, deadline_s: float | None = None, reason: str = "") -> Publish:  # fmt: skip
        """Announce, retained, where the run stands."""
        reason = reason.encode()[:60].decode(errors="ignore")  # 60 bytes, so that the whole stays under 200
        message = RoundState(run=self._plan.name, round=round, device=SERVER, seq=self._number(), state=state,
                             cohort=cohort, deadline_s=deadline_s, reason=reason)  # fmt: skip
        return self._announce(message, audience)

    def sign(self) -> list[Publish]:
        """Say the last announcement again, to other servers: devices have heard it, and would only be kept busy."""
        if self._announced is None:
            return []
        self._ledger.sent((SERVER,), "ignored", len(self._announced))  # by every device
        return [Publish(topics.sign_of_life(self._plan.run), self._announced)]

    def close(self, collection: Collection, audience: tuple[str, ...], listeners: tuple[str, ...], arrays: Arrays,
              rate: float | None = None) -> list[Publish]:  # fmt: skip
        """Announce that a round is closed and send its broadcast to the `listeners`, the slowest of which hears
        `rate` bits/s (None: nobody knows)."""
        round = collection.round
        broadcast = self._cut(round, arrays, rate)
        self._past.add(collection, broadcast)
        message = RoundState(run=self._plan.name, round=round, device=SERVER, seq=self._number(), state="closed",
                             chunks=len(broadcast.encoded), size=broadcast.size, digest=broadcast.digest)  # fmt: skip
        places = [topics.broadcast(self._plan.run, round, index) for index in range(len(broadcast.encoded))]
        return [self._announce(message, audience), *self._send(broadcast, places, listeners)]

    def catch_up(self, device: str, collection: Collection, rate: float | None = None) -> list[Publish]:
        """Send the broadcast of a round that is over again, to one device that was away and hears `rate` bits/s."""
        run, start, round = self._plan.run, self._plan.start, collection.round
        if (broadcast := self._past.broadcast(round)) is None:  # an earlier life of this server sent it
            broadcast = self._cut(round, start.packed or start.broadcast or {}, rate)
            self._past.add(collection, broadcast)
        places = [topics.catch_up(run, device, round, index) for index in range(len(broadcast.encoded))]
        return self._send(broadcast, places, (device,))

    def _cut(self, round: int, arrays: Arrays, rate: float | None) -> Broadcast:
        """Cut a broadcast into chunks. They are encoded once, however many ask for them again."""
        size = min(self._plan.chunk_size, chunk_size(rate))
        chunks = tuple(split(encode_arrays(arrays), size, run=self._plan.name, round=round, device=SERVER,
                             seq=self._number))  # fmt: skip
        if round >= self._last_round:  # what is sent again may be of a round before
            self._last_round, self._last_size = round, chunks[0].size
        encoded = tuple(encode(chunk) for chunk in chunks)
        return Broadcast(encoded, chunks[0].size, chunks[0].digest, payload_bytes(arrays))

    def welcome(self, join: Join, round: int, standing: Standing) -> Publish:
        plan = self._plan
        message = Welcome(run=plan.name, round=round, device=SERVER, seq=self._number(), instance=join.instance,
                          method=plan.method, seed=plan.seed, rounds=plan.rounds, hyper=plan.hyper,
                          standing=standing)  # fmt: skip
        return self._tell(join.device, "welcome", message)

    def accept(self, device: str, round: int) -> Publish:
        message = Accept(run=self._plan.name, round=round, device=SERVER, seq=self._number())
        return self._tell(device, "accept", message)

    def reject(self, device: str, round: int, reason: Literal["late", "invalid", "duplicate", "unfit"], detail: str,
               instance: str = "") -> Publish:  # fmt: skip
        message = Reject(run=self._plan.name, round=round, device=SERVER, seq=self._number(), reason=reason,
                         detail=detail[:300], instance=instance)  # fmt: skip
        return self._tell(device, "reject", message)

    def no_room(self, join: Join) -> Publish:
        """Refuse a device of a name too many; the ledgers have no room for it either."""
        message = Reject(run=self._plan.name, round=join.round, device=SERVER, seq=self._number(), reason="unfit",
                         detail="too many device names have appeared in this run; ask whoever runs its server",
                         instance=join.instance)  # fmt: skip
        data = encode(message)
        self._ledger.sent((SERVER,), "control", len(data))
        return Publish(topics.down(self._plan.run, join.device, "reject"), data)

    def probe(self, device: str, instance: str) -> Publish:
        """Ask this process of a device for a sign of life."""
        message = Probe(run=self._plan.name, device=SERVER, seq=self._number(), instance=instance)
        return self._tell(device, "probe", message)

    def _number(self) -> int:
        """Number a message."""
        self._seq += 1
        return self._seq - 1

    def _announce(self, message: RoundState, audience: Iterable[str]) -> Publish:
        self._announced = data = encode(message)
        self.echoes.say(message, data)
        self._ledger.sent(audience, "control", len(data))
        return Publish(topics.round_state(self._plan.run), data, retain=True)

    def _tell(self, device: str, verb: str, message: Header) -> Publish:
        data = encode(message)
        self._ledger.sent((device,), "control", len(data))
        return Publish(topics.down(self._plan.run, device, verb), data)

    def _send(self, broadcast: Broadcast, places: Iterable[str], listeners: tuple[str, ...]) -> list[Publish]:
        """Send the chunks of a broadcast under these topics."""
        payload = broadcast.payload
        for data in broadcast.encoded:
            self._ledger.sent(listeners, "broadcast", len(data), payload)
            payload = 0  # it travels once, in however many chunks
        return [Publish(place, data) for place, data in zip(places, broadcast.encoded, strict=True)]
