"""The server as one coroutine: a transport, a clock and the coordinator between them.

All decisions are the coordinator's; here its actions are carried out, in their order. Aggregation runs off the
event loop. Messages are acknowledged only after they were used, so the broker's window bounds what waits here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from broker_server.methods.base import Aggregate as Aggregated
from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.rounds import rivals
from broker_server.rounds.actions import (
    Accepted,
    Action,
    Aggregate,
    Amend,
    Checkpoint,
    Closed,
    Finish,
    Note,
    Observe,
    Opened,
    Publish,
    Record,
    Superseded,
)
from broker_server.rounds.coordinator import Coordinator
from broker_server.study.records import Amendment, Closing, Outcome, RoundRecord
from broker_server.study.start import Start
from edge_client.clock import Clock, within
from edge_client.errors import ConfigError, ConnectionLost, GcaError, in_words
from edge_client.protocol import topics
from edge_client.protocol.messages import FAREWELL_S, SERVER, Telemetry
from edge_client.seeds import stream
from edge_client.transport.backoff import delay
from edge_client.transport.base import Connect, Settings, Transport

WINDOW = 20
"""Published messages awaiting acknowledgement at once, the usual window of a broker."""
SHORTEST_TICK_S = 0.001
RESOLUTION_S = 1e-6
"""A wait is no shorter: one of less than the clock's last bit would end before its moment, and begin anew for ever."""


class Sink(Protocol):
    """Where the run's results go: the study, the screen."""

    def record(self, record: RoundRecord) -> None: ...

    def amend(self, amendment: Amendment) -> None: ...

    def observe(self, telemetry: Telemetry, now: float) -> None: ...

    def note(self, text: str) -> None: ...

    def uploaded(self, device: str, round: int) -> None: ...

    def opened(self, round: int, devices: int) -> None: ...

    def closing(self, closing: Closing) -> None: ...

    def checkpoint(self, reached: Start) -> None: ...


Offload = Callable[[Callable[[], Aggregated]], Awaitable[Aggregated]]


class Server:
    """One run on one broker. `serve` returns when the run has ended and every device was told."""

    def __init__(self, plan: RunPlan, method: ServerMethod, connect: Connect, clock: Clock, sink: Sink,
                 offload: Offload) -> None:  # fmt: skip
        self.plan, self.method = plan, method
        self.coordinator = Coordinator(plan, method)
        self._connect, self._clock, self._sink, self._offload = connect, clock, sink, offload
        self._began = clock.now() - plan.start.seconds
        self.listening = asyncio.Event()
        """Set once the server hears its devices and its first state is on the broker. What devices say before that is
        lost, and asked for again when they hear the state."""
        self._outbox: asyncio.Queue[Publish] = asyncio.Queue()
        self._stirred = asyncio.Event()
        self._finished: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None
        self._over = False

    @property
    def now(self) -> float:
        """Seconds since the run began, without those for which its program was stopped."""
        return self._clock.now() - self._began

    async def serve(self) -> Outcome:
        """Run all rounds and return how that ended, timed to the last goodbye.

        Raises `GcaError` if the broker refuses the server for good or the results cannot be written down; the devices
        are told first where that is possible, and a person at once.
        """
        keeping = self._keeping = self._start(self._keep())
        self._start(self._watch_time())
        try:
            outcome = await self._finished
            await self._hear_goodbyes(keeping)
            outcome = replace(outcome, ended_s=self.now)
        except asyncio.CancelledError:
            self.abort("the server was stopped")
            await within(self._clock, FAREWELL_S, self._hear_goodbyes(keeping))
            raise
        finally:
            # Also when a second cancellation cut the goodbyes short: nothing may stay behind on the broker.
            try:
                await self._sweep(keeping)
            finally:
                self._over = True
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._fault is not None:
            raise self._fault
        return outcome

    def abort(self, reason: str) -> None:
        """End the run from outside: devices are told why."""
        self._carry_out(self.coordinator.fail(reason, self.now))

    def disconnect(self) -> None:
        """Have no connection from now on, as the broker is gone for good or another's: nobody is waited for."""
        self._over = True
        if self._keeping is not None:
            self._keeping.add_done_callback(lambda _: self._stirred.set())
            self._keeping.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task of this run. Should it fail, the run fails."""

        def ended(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._break(error)

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    def _break(self, error: BaseException, reason: str | None = None) -> None:
        """End the run because of this error, which `serve` raises once the devices have been told."""
        while isinstance(error, BaseExceptionGroup):  # its members failed together: the first says why
            error = error.exceptions[0]
        if self._fault is None:
            self._fault = error
            self.abort(reason or in_words(error))

    # ---- the connection -----------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        failures, jitter = 0, stream(self.plan.seed, "backoff", 0, SERVER)
        settings = Settings(f"{SERVER}-{self.plan.run}", persistent=True)
        # A task group whose member fails at the moment of a cancellation forgets the cancellation, hence the flag.
        while not self._over:
            try:
                async with self._connect(settings) as transport:
                    failures = 0
                    await transport.subscribe(*topics.server_filters(self.plan.run), *rivals.filters(self.plan.run))
                    began = self.listening.is_set()  # before that, what is retained may be of a server that is dead
                    self._carry_out(self.coordinator.announce(self.now))
                    async with self._sending(transport):
                        if not self.listening.is_set():
                            await self._outbox.join()
                            self.listening.set()
                        async for message in transport.messages():
                            topic, kept = message.topic, message.retained
                            if began or not kept or topic not in rivals.filters(self.plan.run):
                                self._carry_out(self.coordinator.take(topic, message.payload, self.now, kept))
                            transport.acknowledge(message)
            except* ConnectionLost as lost:
                if self.coordinator.has_given_way:  # to another server, which would be thrown off again
                    self._over = True
                wait = delay(failures, jitter)
                failures += 1
                self._sink.note(f"{lost.exceptions[0]}; next try in {wait:.1f} s")
            if not self._over:
                await self._clock.sleep(wait)
        self._stirred.set()

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

    async def _hear_goodbyes(self, keeping: "asyncio.Task[None]") -> None:
        """Let the terminal state reach the devices and their goodbyes reach us, for as long as they may take."""
        while not self.coordinator.all_gone and not keeping.done():  # once done, there is no connection any more
            due = self.coordinator.farewell_due(self.now)
            if due <= self.now:
                self._carry_out(self.coordinator.no_goodbyes())
                return
            await self._until_stirred(due)

    async def _sweep(self, keeping: "asyncio.Task[None]") -> None:
        """Leave nothing on the broker but the end, and write down what came since the last round."""
        self._carry_out(self.coordinator.closing())
        gone = self._over or keeping.done()
        if not gone and not await within(self._clock, FAREWELL_S, self._outbox.join()):
            self._carry_out([Note("the broker did not take the last messages; devices may wait in vain")])

    # ---- the coordinator's wishes -------------------------------------------------------------------------------

    async def _watch_time(self) -> None:
        """Tick the coordinator when it is due. Whatever happens to it may move that moment."""
        while True:
            due = self.coordinator.due(self.now)
            if due is not None and due <= self.now:
                self._carry_out(self.coordinator.tick(self.now))
                due = self.now + SHORTEST_TICK_S
            await self._until_stirred(due)

    async def _until_stirred(self, due: float | None) -> None:
        """Return when the coordinator has done something, or at this moment at the latest."""
        self._stirred.clear()
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._stirred.wait())]
        if due is not None:
            waits.append(asyncio.ensure_future(self._clock.sleep(max(RESOLUTION_S, due - self.now))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        """Do what the coordinator wants; a sink that cannot take the results ends the run, with the devices told."""
        fault = None
        for action in actions:
            try:
                self._do(action)
            except Exception as error:
                fault = fault or error
        if fault is not None:  # only now: the end must be the last that devices hear
            self._break(fault)
        self._stirred.set()

    def _do(self, action: Action) -> None:
        match action:
            case Publish():
                self._outbox.put_nowait(action)
            case Aggregate():
                self._start(self._aggregate(action))
            case Opened(round, devices):
                self._sink.opened(round, devices)
            case Accepted(round, device):
                self._sink.uploaded(device, round)
            case Checkpoint(reached):
                self._sink.checkpoint(reached)
            case Record(record):
                self._sink.record(record)
            case Observe(telemetry):
                self._sink.observe(telemetry, self.now)
            case Note(text):
                self._sink.note(text)
            case Amend(amendment):
                self._sink.amend(amendment)
            case Closed(closing):
                self._sink.closing(closing)
            case Superseded(why, at_once):
                self._fault = self._fault or ConfigError(why)
                if at_once:
                    self.disconnect()
            case Finish(outcome) if not self._finished.done():
                self._finished.set_result(outcome)

    async def _aggregate(self, wish: Aggregate) -> None:
        try:
            result = await self._offload(lambda: self.method.aggregate(wish.round, wish.uploads, wish.previous))
        except Exception as error:
            reason = f"aggregation of round {wish.round} failed: {type(error).__name__}: {error}"
            if isinstance(error, GcaError):  # an outcome of the run, and no fault of the program
                self.abort(reason)
            else:
                self._break(error, reason)
        else:
            self._carry_out(self.coordinator.aggregated(result, self.now))
