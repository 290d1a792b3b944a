"""A device's conversation with the server, which outlives any one connection.

`Session.connection` holds a connection open, reconnecting with back-off and jitter; the device's life (`device.py`)
asks for what comes next (`welcome`, `next_round`, `upload`, `broadcast`) and waits for facts, never for
connections. Facts are in the mailbox (`mailbox.py`), and what is said goes out through the outbox (`outbox.py`).
Nothing here has a fixed time-out: a wait ends when the server has spoken. After a reconnect the device asks where it
stands (`Join.awaits`) and sends again only what the server says is missing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from edge_client.clock import Clock, within
from edge_client.conversation.identity import Identity
from edge_client.conversation.mailbox import Fate, Mailbox
from edge_client.conversation.news import News
from edge_client.conversation.outbox import Awaited, Outbox
from edge_client.errors import ConfigError, ConnectionLost, ProtocolError, in_words
from edge_client.protocol import topics
from edge_client.protocol.codec import Arrays, encode_arrays, payload_bytes
from edge_client.protocol.messages import FAREWELL_S, Header, Probe, RoundState, Telemetry, Welcome
from edge_client.protocol.tally import TallySheet
from edge_client.transport.backoff import delay
from edge_client.transport.base import Connect, Transport

GOODBYE_S = 5.0
"""How long a device that leaves waits for its goodbye to go out."""

T = TypeVar("T")


class Session:
    """See the module. `jitter` spreads the retries of many devices; `log` takes one line for a person. `seq` is the
    number that messages go on from, once this device has joined. `unsure_of` is the round whose upload an earlier
    process of this device may have sent: the server is asked what became of it, and asks this process in place of that
    one. None: this process goes on from no earlier one."""

    def __init__(self, who: Identity, connect: Connect, clock: Clock, jitter: np.random.Generator,
                 log: Callable[[str], None], seq: int = 0, unsure_of: int | None = None) -> None:  # fmt: skip
        self.who = who
        self.tally = TallySheet()
        self.mail = Mailbox(who.run, who.device, who.instance, self.tally)
        self.outbox = Outbox(who, self.mail, seq)
        self._connect, self._clock, self._jitter, self._log = connect, clock, jitter, log
        self._transport: Transport | None = None
        self._welcome_on: Transport | None = None  # the connection on which the server last answered
        self._kept = True
        self._listening = False
        self._awaits: Awaited = "nothing" if unsure_of is None else "acceptance"
        self._round = unsure_of or 0
        self._brought: tuple[int, Arrays, str] | None = None  # the last upload: its round, and in which life
        self._sent_to = ""  # the life of the server that chunks were sent to last
        self._news = News()

    # ---- what a device asks -------------------------------------------------------------------------------------

    async def welcome(self) -> Welcome:
        """Return the server's welcome."""
        welcome = await self._until(lambda: self.mail.welcome)
        self._awaits = "nothing"
        return welcome

    async def next_round(self, after: int) -> RoundState:
        """Return the first state that opens a round beyond `after`, or that ends the run."""
        return await self._until(lambda: self.mail.opening(after))

    async def enter(self, round: int, taking_part: bool) -> None:
        """Begin a round: subscribe to broadcasts, or no longer, as who is not in the cohort need not pay for them.

        The round's broadcast is collected from here on: it may come while a slow device still trains.
        """
        if taking_part:
            self.mail.expect_broadcast(round)
        if taking_part == self._listening:
            return
        self._listening = taking_part
        if self._transport is not None:
            pattern = topics.broadcast_filter(self.who.run)
            await self._try(self._transport.subscribe(pattern) if taking_part else self._transport.unsubscribe(pattern))

    async def upload(self, round: int, arrays: Arrays) -> Fate:
        """Bring a round's upload to the server and return what the server made of it."""
        self._round, self._awaits = round, "acceptance"
        chunks = -(-len(body := encode_arrays(arrays)) // self.who.chunk_size)
        payload = payload_bytes(arrays)  # belongs to the first sending; what follows are repetitions
        unsent: Sequence[int] = range(chunks)
        while (fate := self._fate(round)) is None:
            await self._until(lambda: self._fate(round) or self._may_send(round))
            if (transport := self._may_send(round)) is None:
                continue  # the run has ended, and nobody is left to answer
            told, self._sent_to = self.mail.welcome, self.mail.life
            pieces = self.outbox.cut(round, body, unsent)
            await self._try(self.outbox.send(transport, pieces, payload, lambda: self._fate(round) is not None))
            payload = 0
            # Now the server decides, or answers a question asked after a reconnect with what it still lacks.
            await self._until(partial(self._answered, round, told, chunks))
            unsent = range(chunks) if self._is_of_the_past(told) else self.mail.lacks(round, told, chunks) or ()
        self._awaits, self._brought = "nothing", (round, arrays, self.mail.life)
        return fate

    async def broadcast(self, round: int) -> Arrays | None:
        """Return the broadcast of a round, or None if the round has none or this device missed it."""
        self._round, self._awaits = round, "broadcast"
        if self.mail.passed_by(round) and (transport := self._ready()) is not None:
            await self._try(self._ask(transport))
        while (again := await self._over_or_called_again(round)) is not None:
            self._log(f"round {round}: the server was started anew and calls for this round's upload again")
            await self.upload(round, again)
            self._awaits = "broadcast"
        if not self.mail.broadcast_is_decided(round):  # cut off at the very end: the server stays a while to answer
            await within(self._clock, FAREWELL_S, self._until(lambda: self.mail.broadcast_is_decided(round)))
        self._awaits, self._brought = "nothing", None
        try:
            return self.mail.broadcast()
        except ProtocolError as error:
            self._log(f"round {round}: the broadcast is unusable: {error}")
            return None

    async def report(self, telemetry: Telemetry) -> None:
        """Send a round's telemetry, where there is a connection: nobody asks for it again."""
        for part in self.outbox.parts(telemetry):
            if self._transport is not None:
                await self._try(self.outbox.report(self._transport, part))

    async def leave(self, state: Literal["left", "failed"], detail: str = "",
                    first: Callable[[], Awaitable[None]] | None = None) -> None:  # fmt: skip
        """Say goodbye, on the next connection if this one breaks, but do not wait for one too long. A server that hears
        it may leave at once, so what is still to reach it is said `first`, and can count the goodbye already. It is
        said once, also where there is no connection: some hear it beside the network."""

        # It closes this device's ledger. What a link that breaks after it makes the device say again, its greeting and
        # the goodbye, is on the ledgers of the server and of the link; a second report would come when the server may
        # have gone, and tell of a round twice.
        async def once() -> None:
            nonlocal first
            if first is not None:
                call, first = first, None
                await call()

        if self._kept:
            await within(self._clock, GOODBYE_S, self._say_goodbye(state, detail, once))
        await once()

    async def _say_goodbye(
        self, state: Literal["left", "failed"], detail: str, first: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            transport = await self._until(lambda: self._transport)
            try:
                return await self.outbox.announce(transport, state, detail, first)
            except ConnectionLost:
                await self._until(lambda broken=transport: self._transport is not broken)  # type: ignore[misc]

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the broker, on which a server may or may not have answered."""
        return self._transport is not None

    # ---- the connection -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        """Keep a connection for the length of the block; what ends it for good ends the block with its error."""
        keeper, body = asyncio.ensure_future(self._keep()), asyncio.current_task()
        assert body is not None
        keeper.add_done_callback(lambda done: None if done.cancelled() else body.cancel())
        try:
            yield
        except asyncio.CancelledError:
            if keeper.done() and not keeper.cancelled() and (error := keeper.exception()):
                body.uncancel()
                raise error from None
            raise
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])

    async def _keep(self) -> None:
        """Hold a connection until cancelled or until the server refuses this device for good."""
        failures = 0
        try:
            while True:
                try:
                    async with self._connect(self.outbox.settings()) as transport, self._leaving_no_trace(transport):
                        await self._greet(transport)
                        failures = 0
                        await self._now_on(transport)
                        await self._read(transport)
                except ConnectionLost as lost:
                    await self._now_on(None)
                    wait = delay(failures, self._jitter)
                    failures += 1
                    self._log(f"{lost}; next try in {wait:.1f} s")
                    await self._clock.sleep(wait)
        finally:
            self._kept = False

    @asynccontextmanager
    async def _leaving_no_trace(self, transport: Transport) -> AsyncIterator[None]:
        """A connection that is closed in order leaves no last will behind: whatever ends this device for good must not
        let it stand there as online. A refused one says nothing: its name is another's."""
        try:
            yield
        except ConnectionLost:
            raise
        except Exception as error:
            if self.mail.refusal is None:
                with suppress(ConnectionLost):
                    await within(self._clock, GOODBYE_S, self.outbox.announce(transport, "failed", in_words(error)))
            raise

    async def _greet(self, transport: Transport) -> None:
        """Subscribe, show presence and join in one round trip: the broker takes them in this order."""
        filters = topics.device_filters(self.who.run, self.who.device)
        if self._listening:
            filters += (topics.broadcast_filter(self.who.run),)
        online = self.outbox.announce(transport, "online")
        await asyncio.gather(transport.subscribe(*filters), online, self._ask(transport))

    async def _read(self, transport: Transport) -> None:
        async for incoming in transport.messages():
            message = self.mail.take(incoming.topic, incoming.payload)
            transport.acknowledge(incoming)
            if (refusal := self.mail.refusal) is not None:
                raise ConfigError(
                    f"device {self.who.device}: the server refuses it ({refusal.reason}): {refusal.detail}"
                )
            if isinstance(message, Welcome):
                self._welcome_on = transport
            elif self.mail.superseded:
                self._welcome_on = None
            if isinstance(message, Probe):
                await self._try(self.outbox.announce(transport, "online"))
            if not incoming.retained and self._must_ask(transport, incoming.topic, message):
                await self._try(self._ask(transport))
            self._news.tell()

    def _must_ask(self, transport: Transport, topic: str, message: Header | None) -> bool:
        """A round state, unless retained, is also the server's sign of life. Whoever is not welcome yet asks; so does
        who awaits the fate of an upload that is called for anew, or a broadcast that passed by. This replaces every
        retry timer."""
        if self._welcome_on is not transport or self.mail.superseded:
            return topic == topics.round_state(self.who.run)
        match message:
            case RoundState(state="open", round=round) if round == self._round:
                return self._awaits == "acceptance" and self._sent_to == self.mail.life
            case RoundState():
                return self._awaits == "broadcast" and self.mail.passed_by(self._round)
            case Welcome():
                answered = self.mail.standing(self._round) in ("follows", "gone")
                return self._awaits == "broadcast" and self.mail.passed_by(self._round) and not answered
        return False

    async def _ask(self, transport: Transport) -> None:
        await self.outbox.ask(transport, self._round, self._awaits)

    async def _try(self, call: Awaitable[None]) -> None:
        """Await a call that a broken connection may end: the keeper mends the connection, the caller asks again."""
        try:
            await call
        except ConnectionLost:
            self._log("connection lost while sending")

    async def _now_on(self, transport: Transport | None) -> None:
        self._transport = transport
        self._news.tell()

    async def _until(self, fact: Callable[[], T | None]) -> T:
        """Wait for a fact: anything that is neither None nor False."""
        while (value := fact()) is None or value is False:
            await self._news.wait()
        return value

    # ---- facts --------------------------------------------------------------------------------------------------

    def _ready(self) -> Transport | None:
        """The connection, once the server has answered on it."""
        return self._transport if self._transport is self._welcome_on else None

    def _is_held_back(self, round: int) -> bool:
        """Whether an earlier life of the server called a round, and the present one has yet to."""
        state = self.mail.round
        is_called = state is not None and state.round >= round
        return not is_called and self.mail.standing(round) not in ("unseen", "partial")

    def _is_open(self, round: int) -> bool:
        state = self.mail.round
        return state is not None and (state.state, state.round) == ("open", round)

    def _may_send(self, round: int) -> Transport | None:
        return None if self._is_held_back(round) else self._ready()

    def _fate(self, round: int) -> Fate | None:
        return self.mail.fate(round, self._ready() is not None)

    def _answered(self, round: int, told: Welcome | None, chunks: int) -> bool:
        """Whether the server has decided on an upload, or said what it lacks in a welcome newer than `told`."""
        decided = self._fate(round) or self.mail.lacks(round, told, chunks) is not None
        return bool(decided) or self._is_of_the_past(told)

    def _is_of_the_past(self, told: Welcome | None) -> bool:
        """Whether what was sent under this welcome went to a life of the server that is over."""
        return told is not None and told.run != self.mail.life

    async def _over_or_called_again(self, round: int) -> Arrays | None:
        """Wait for a broadcast, or the end of the run, or a later life of the server that lacks this device's upload,
        which is returned then."""
        mail = self.mail
        await self._until(lambda: mail.broadcast_is_decided(round) or mail.ended or self._is_called_again(round))
        return self._is_called_again(round)

    def _is_called_again(self, round: int) -> Arrays | None:
        """Return what this device has brought to an earlier life of the server, if the present one lacks it."""
        if self._brought is None or not self._is_open(round):
            return None
        of, arrays, life = self._brought
        return arrays if of == round and life != self.mail.life else None

    @property
    def end(self) -> RoundState | None:
        """What the server said about the end of the run; None before."""
        return self.mail.end
