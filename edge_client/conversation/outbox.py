"""What a device says to the server: each message numbered, counted, and sent under its topic.

The counterpart of the mailbox, in which is what it hears. When to say what is the session's to decide (`session.py`).
Every call that takes a transport raises `ConnectionLost` when that breaks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from edge_client.conversation.identity import Identity
from edge_client.conversation.mailbox import Mailbox
from edge_client.protocol import topics
from edge_client.protocol.chunks import split
from edge_client.protocol.codec import encode
from edge_client.protocol.messages import Chunk, Header, Join, Presence, Telemetry
from edge_client.protocol.tally import Kind
from edge_client.transport.base import Settings, Transport, Will
from edge_client.transport.pacing import IN_FLIGHT

EVALUATIONS = 400
"""Evaluations in one message, each at most 150 bytes: together they stay below the size of a chunk."""
GREETING = 3
"""Numbers that joining takes: of the last will, the presence and the join."""

Awaited = Literal["nothing", "acceptance", "broadcast"]


class Outbox:
    """See the module. `mail` knows in which life the server is, and `seq` is the number that messages go on from, once
    this device has joined."""

    def __init__(self, who: Identity, mail: Mailbox, seq: int = 0) -> None:
        self.who, self._mail = who, mail
        self.seq = max(0, seq - GREETING)
        """The number of the next message."""

    def next_seq(self) -> int:
        """Number the next message."""
        self.seq += 1
        return self.seq - 1

    # ---- messages -----------------------------------------------------------------------------------------------

    def settings(self) -> Settings:
        """Return how to connect, with the last will of the connection."""
        # The client id names the process: our own half-open connection is taken over, another device's never is.
        return Settings(f"{self.who.device}-{self.who.instance}", self._will(), self.who.keepalive)

    def _will(self) -> Will:
        lost = Presence(run=self._mail.life, device=self.who.device, seq=self.next_seq(), state="lost",
                        instance=self.who.instance)  # fmt: skip
        return Will(topics.presence(self.who.run, self.who.device), encode(lost))

    def cut(self, round: int, body: bytes, wanted: Sequence[int]) -> list[Chunk]:
        """Return these chunks of an upload, for the server's present life."""
        who = self.who
        whole = list(split(body, who.chunk_size, run=self._mail.life, round=round, device=who.device,
                           seq=self.next_seq))  # fmt: skip
        return [whole[index] for index in wanted]

    def parts(self, telemetry: Telemetry) -> Iterator[Telemetry]:
        """Cut telemetry into messages that every broker takes; nothing but evaluations is in the later ones."""
        judged = telemetry.evaluations
        yield replace(telemetry, evaluations=judged[:EVALUATIONS])
        for begin in range(EVALUATIONS, len(judged), EVALUATIONS):
            part = judged[begin : begin + EVALUATIONS]
            yield replace(telemetry, seq=self.next_seq(), evaluations=part, spent_s={}, spans_s={}, tallies=(),
                          ignored={})  # fmt: skip

    # ---- sending ------------------------------------------------------------------------------------------------

    async def ask(self, transport: Transport, round: int, awaits: Awaited) -> None:
        """Join, or ask where this device stands with what it awaits."""
        who = self.who
        join = Join(run=self._mail.life, round=round, device=who.device, seq=self.next_seq(), instance=who.instance,
                    samples=who.samples, input_dim=who.input_dim, up_rate=who.up_rate, down_rate=who.down_rate,
                    awaits=awaits)  # fmt: skip
        await self._post(transport, topics.join(who.run, who.device), join, "control")

    async def announce(
        self, transport: Transport, state: Literal["online", "left", "failed"], detail: str = "",
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        """Show presence, or say goodbye; what is to be said `first` may count this message among those sent."""
        who = self.who
        message = Presence(run=self._mail.life, device=who.device, seq=self.next_seq(), state=state,
                           instance=who.instance, detail=detail[:300])  # fmt: skip
        await self._post(transport, topics.presence(who.run, who.device), message, "control", retain=True, first=first)

    async def report(self, transport: Transport, part: Telemetry) -> None:
        """Send a part of a round's telemetry with QoS 0: it is about the run, not part of it."""
        await self._post(transport, topics.telemetry(self.who.run, self.who.device), part, "telemetry", qos=0)

    async def send(
        self, transport: Transport, chunks: Sequence[Chunk], payload: int, decided: Callable[[], bool]
    ) -> None:
        """Publish the chunks of an upload with `payload` bytes of tensors, stopping early once it is decided: one is on
        the link while the acknowledgement of another travels."""
        window = asyncio.Semaphore(IN_FLIGHT)

        async def send(chunk: Chunk, payload: int) -> None:
            async with window:
                if not decided():
                    topic = topics.upload(self.who.run, self.who.device, chunk.round, chunk.index)
                    await self._post(transport, topic, chunk, "upload", payload=payload)

        # No task group: one whose member fails at the moment of a cancellation forgets the cancellation.
        tasks = [asyncio.ensure_future(send(chunk, 0 if n else payload)) for n, chunk in enumerate(chunks)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _post(self, transport: Transport, topic: str, message: Header, kind: Kind, *, qos: int = 1,
                    retain: bool = False, payload: int = 0,
                    first: Callable[[], Awaitable[None]] | None = None) -> None:  # fmt: skip
        data = encode(message)
        self._mail.tally.count("up", kind, len(data), payload)
        if first is not None:
            await first()
        await transport.publish(topic, data, qos=qos, retain=retain)
