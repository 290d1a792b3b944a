"""The server as one coroutine: a transport, a clock and the coordinator between them.

All decisions are the coordinator's; here its actions are carried out, in their order. Aggregation runs off the
event loop. Messages are acknowledged only after they were used, so the broker's window bounds what waits here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from broker_server.actions import (
    Accepted,
    Action,
    Aggregate,
    Checkpoint,
    Finish,
    Note,
    Observe,
    Opened,
    Publish,
    Record,
)
from broker_server.coordinator import Coordinator
from broker_server.methods.base import Aggregate as Aggregated
from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.records import Closing, Outcome, RoundRecord
from edge_client.clock import Clock, within
from edge_client.errors import ConnectionLost, GcaError
from edge_client.protocol import topics
from edge_client.protocol.codec import Arrays
from edge_client.protocol.messages import FAREWELL_S, SERVER, Telemetry
from edge_client.seeds import stream
from edge_client.transport.backoff import delay
from edge_client.transport.base import Connect, Settings, Transport

WINDOW = 20
"""Published messages awaiting acknowledgement at once, the usual window of a broker."""
SHORTEST_TICK_S = 0.001


class Sink(Protocol):
    """Where the run's results go: the study, the screen."""

    def record(self, record: RoundRecord) -> None: ...

    def observe(self, telemetry: Telemetry) -> None: ...

    def note(self, text: str) -> None: ...

    def uploaded(self, device: str, round: int) -> None: ...

    def opened(self, round: int, devices: int) -> None: ...

    def closing(self, closing: Closing) -> None: ...

    def checkpoint(self, round: int, broadcast: Arrays) -> None: ...


Offload = Callable[[Callable[[], Aggregated]], Awaitable[Aggregated]]


class Server:
    """One run on one broker. `serve` returns when the run has ended and every device was told."""

    def __init__(self, plan: RunPlan, method: ServerMethod, connect: Connect, clock: Clock, sink: Sink,
                 offload: Offload) -> None:  # fmt: skip
        self.plan, self.method = plan, method
        self.coordinator = Coordinator(plan, method)
        self._connect, self._clock, self._sink, self._offload = connect, clock, sink, offload
        self._began = clock.now()
        self.listening = asyncio.Event()
        """Set once the server hears its devices and its first state is on the broker. What devices say before that is
        lost, and asked for again when they hear the state."""
        self._outbox: asyncio.Queue[Publish] = asyncio.Queue()
        self._stirred = asyncio.Event()
        self._finished: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._aggregation: asyncio.Task[None] | None = None
        self._over = False

    @property
    def now(self) -> float:
        """Seconds since this server began."""
        return self._clock.now() - self._began

    async def serve(self) -> Outcome:
        """Run all rounds. Raises `GcaError` if the broker refuses the server for good."""
        async with asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(self._keep()), tasks.create_task(self._watch_time())]
            try:
                return await self._finished
            finally:
                self.abort("the server was stopped")  # nothing, if the run has ended
                if not workers[0].done():  # else there is no connection to say goodbye on
                    await self._say_goodbye()
                self._over = True
                for worker in workers:
                    worker.cancel()
                if self._aggregation is not None:
                    self._aggregation.cancel()

    def abort(self, reason: str) -> None:
        """End the run from outside: devices are told why."""
        self._carry_out(self.coordinator.fail(reason, self.now))

    # ---- the connection -----------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        failures, jitter = 0, stream(self.plan.seed, "backoff", 0, SERVER)
        settings = Settings(f"{SERVER}-{self.plan.run}", persistent=True)
        # A task group whose member fails at the moment of a cancellation forgets the cancellation, hence the flag.
        while not self._over:
            try:
                async with self._connect(settings) as transport:
                    failures = 0
                    await transport.subscribe(*topics.server_filters(self.plan.run))
                    self._carry_out(self.coordinator.announce(self.now))
                    async with self._sending(transport):
                        if not self.listening.is_set():
                            await self._outbox.join()
                            self.listening.set()
                        async for message in transport.messages():
                            self._carry_out(self.coordinator.take(message.topic, message.payload, self.now))
                            transport.acknowledge(message)
            except* ConnectionLost as lost:
                wait = delay(failures, jitter)
                failures += 1
                self._sink.note(f"{lost.exceptions[0]}; next try in {wait:.1f} s")
            if not self._over:
                await self._clock.sleep(wait)

    @asynccontextmanager
    async def _sending(self, transport: Transport) -> AsyncIterator[None]:
        """Publish the outbox in order, up to `WINDOW` messages ahead of their acknowledgements. What was not
        acknowledged on this connection goes again on the next: devices take a repetition for one."""
        window = asyncio.Semaphore(WINDOW)

        def sent(message: Publish, task: asyncio.Task[None]) -> None:
            if task.cancelled() or task.exception() is not None:
                self._outbox.put_nowait(message)
            self._outbox.task_done()
            window.release()

        async def pump() -> None:
            while True:
                await window.acquire()
                message = await self._outbox.get()
                publishing = transport.publish(message.topic, message.payload, retain=message.retain)
                sending.create_task(publishing).add_done_callback(partial(sent, message))

        async with asyncio.TaskGroup() as sending:
            pumping = sending.create_task(pump())
            try:
                yield
            finally:
                pumping.cancel()

    async def _say_goodbye(self) -> None:
        """Let the terminal state reach the devices and their goodbyes reach us, then leave nothing on the broker."""
        if not await within(self._clock, max(FAREWELL_S, self.plan.patience_s), self._all_gone()):
            self._sink.note(f"no goodbye came from: {', '.join(sorted(self.coordinator.members.joined))}")
        actions, closing = self.coordinator.closing()
        self._carry_out(actions)
        self._sink.closing(closing)
        if not await within(self._clock, FAREWELL_S, self._outbox.join()):
            self._sink.note("the broker did not take the last messages; devices may wait in vain")

    async def _all_gone(self) -> None:
        while not self.coordinator.all_gone:
            self._stirred.clear()
            await self._stirred.wait()

    # ---- the coordinator's wishes -------------------------------------------------------------------------------

    async def _watch_time(self) -> None:
        """Tick the coordinator when it is due. Whatever happens to it may move that moment."""
        while True:
            due = self.coordinator.due(self.now)
            self._stirred.clear()
            if due is not None and due <= self.now:
                self._carry_out(self.coordinator.tick(self.now))
                due = self.now + SHORTEST_TICK_S
            sleeping = asyncio.ensure_future(self._clock.sleep(max(0.0, due - self.now))) if due is not None else None
            stirring = asyncio.ensure_future(self._stirred.wait())
            pending = {task for task in (sleeping, stirring) if task is not None}
            try:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in pending:
                    task.cancel()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Publish():
                    self._outbox.put_nowait(action)
                case Aggregate():
                    self._aggregation = asyncio.ensure_future(self._aggregate(action))
                case Opened(round, devices):
                    self._sink.opened(round, devices)
                case Accepted(round, device):
                    self._sink.uploaded(device, round)
                case Checkpoint(round, broadcast):
                    self._sink.checkpoint(round, broadcast)
                case Record(record):
                    self._sink.record(record)
                case Observe(telemetry):
                    self._sink.observe(telemetry)
                case Note(text):
                    self._sink.note(text)
                case Finish(outcome) if not self._finished.done():
                    self._finished.set_result(outcome)
        self._stirred.set()

    async def _aggregate(self, wish: Aggregate) -> None:
        try:
            result = await self._offload(lambda: self.method.aggregate(wish.round, wish.uploads, wish.previous))
            self._carry_out(self.coordinator.aggregated(result, self.now))
        except Exception as error:
            reason = f"aggregation of round {wish.round} failed: {type(error).__name__}: {error}"
            self._carry_out(self.coordinator.fail(reason, self.now))
            if not isinstance(error, GcaError):
                raise
