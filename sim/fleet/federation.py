"""A federation in one process: each device a coroutine, the network in memory, training on a thread per core.

Device, session, coordinator and broker core are those of device processes, and each phase is computed alone, so the
results are theirs bit for bit, whatever the number of threads. On a `VirtualLoop` the run takes no longer than its
arithmetic; on any other loop it takes as long as with processes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from broker_server.server import Server
from broker_server.study.records import Outcome
from edge_client.clock import Clock, RealClock
from edge_client.conversation.identity import Identity
from edge_client.conversation.session import Session
from edge_client.data.records import Records, load_records
from edge_client.device import Device, live
from edge_client.errors import GcaError, in_words
from edge_client.offload import Offload, into, no_sooner
from edge_client.private_seeds import emulated
from edge_client.protocol.messages import Telemetry
from edge_client.seeds import digest, stream
from sim.config.devices import device_boards, device_links, in_short
from sim.config.run_plan import server_method
from sim.emulation.dropout import silences
from sim.emulation.journal import Journal
from sim.emulation.models import save_model, state_sha256
from sim.emulation.runs import FAREWELL_S, Federation, Finished
from sim.emulation.states import load_state, save_state
from sim.emulation.workload import Shard
from sim.fleet.calibration import measured_speed
from sim.fleet.clock import VirtualClock
from sim.fleet.compute import Crew, Inline, cores, training_threads
from sim.fleet.loop import VirtualLoop
from sim.fleet.memory import rare_collection
from sim.fleet.network import Network
from sim.fleet.replay import RecordedWork, ReplayedWork
from sim.fleet.synthetic import SyntheticWork
from sim.fleet.work import RealWork, Work
from sim.links.profiles import chunk_size, downlink, keepalive, uplink
from sim.links.proxy import LinkCounters
from sim.torch_thread import torch_in_one_thread

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

TURN_S = 5e-3
"""Virtual seconds from the last upload of a round to its broadcast, whatever aggregation takes here: a server needs a
moment, in which the acceptance leaves alone. Sent at once, the two would share a segment, and it would arrive later."""

TRIES, LOOK_S = 300, 3600.0
"""Connections that a device may begin after the end of the run, and virtual seconds between two looks at how many: who
has tried so often never gets through."""

FACTS = 1000
"""Facts of the study that are committed together, at least once a round."""


async def run(federation: Federation, journal: Journal, threads: int | None = None) -> Finished:
    """Run all rounds and return how it ended; `threads` train, one per core by default.

    In virtual time a federation without a board's speed gets that of this machine, measured now, and a note says so.
    Raises `GcaError` when a device fails; the others have been told by then.
    """
    torch_in_one_thread(federation.study)
    with threadpool_limits(1, "blas"), rare_collection(len(federation.shards)):
        return await _Fleet(federation, journal, threads or cores()).run()


def _work(federation: Federation, test: NDArray[np.floating[Any]] | None) -> Work:
    """Return where the local work of a run comes from."""
    study, recording = federation.study, federation.recording
    if study.compute == "synthetic":
        return SyntheticWork(study.seed)
    if recording is None:
        return RealWork(test)
    return ReplayedWork(recording, in_short(study.link)) if recording.is_complete else RecordedWork(test, recording)


class _Fleet:
    """The tasks of one run and what they share."""

    def __init__(self, federation: Federation, journal: Journal, threads: int) -> None:
        self._federation, self._journal = federation, journal
        self._threads = threads
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        boards = device_boards(federation.study)
        self._speeds = {device: board.training_flops for device, board in boards.items()}
        first = load_records(federation.shards[0].path, federation.test)
        self._test, self._labels = first.test, first.labels
        self._work = _work(federation, self._test)
        self._links = device_links(federation.study)
        self._network = Network(
            {shard.device: self._links[shard.device] for shard in federation.shards}, federation.study.seed,
            journal.note, began_s=federation.plan.start.seconds,
        )  # fmt: skip

    async def run(self) -> Finished:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            with training_threads(self._threads) as pool, ThreadPoolExecutor(1) as apart:
                return await self._run(RealClock(), into(pool), into(apart))
        if None in self._speeds.values():
            speed = self._work.speed(self._measured_speed)
            self._speeds = {device: known or speed for device, known in self._speeds.items()}
            self._journal.note(
                f"hardware {in_short(self._federation.study.hardware)}: where no speed is known training lasts as on "
                f"this machine ({speed / 1e9:.2f} GFLOP/s, as measured), so the times of this study are not "
                "reproducible"
            )
        clock = VirtualClock(loop)
        crew, one_apart = Inline(clock) if self._work.is_light else Crew(self._threads, clock), Crew(1, clock)

        def aggregating(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
            return no_sooner(clock, TURN_S, one_apart.offload(function, *args, **kwargs))

        try:
            return await self._run(clock, crew.offload, aggregating)
        finally:
            crew.close()
            one_apart.close()

    async def _run(self, clock: Clock, training: Offload, aggregating: Offload) -> Finished:
        federation, journal = self._federation, self._journal
        journal.read_links = self._read_links
        journal.in_groups(FACTS)
        method = self._work.server(server_method(federation.study))
        server = Server(federation.plan, method, self._network.beside, clock, journal, aggregating)
        serving = asyncio.create_task(server.serve(), name="server")
        devices: list[asyncio.Task[None]] = []
        try:
            await asyncio.wait([serving, listening := asyncio.create_task(server.listening.wait(), name="listening")],
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            listening.cancel()
            for number in federation.order or range(len(federation.shards)):
                devices.append(self._start(federation.shards[number], clock, training, server))
            outcome: Outcome = await self._unless_failed(serving)
            await self._done(devices, outcome.completed)
            if self._work.refusal is not None:
                raise self._work.refusal
        except (Exception, asyncio.CancelledError) as error:
            server.abort(in_words(error) if isinstance(error, Exception) else "interrupted")
            await asyncio.wait([serving], timeout=FAREWELL_S)
            if (refusal := self._work.refusal) is not None:
                raise refusal from None
            raise
        finally:
            for task in (serving, *devices):
                task.cancel()
            await asyncio.gather(serving, *devices, return_exceptions=True)
            self._read_links(federation.plan.rounds, None)
        return Finished(outcome, self._state_sha256())

    # ---- devices ------------------------------------------------------------------------------------------------

    def _start(self, shard: Shard, clock: Clock, training: Offload, server: Server) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._live(shard, clock, training, server), name=shard.device)
        task.add_done_callback(partial(self._ended, shard.device))
        return task

    async def _live(self, shard: Shard, clock: Clock, training: Offload, server: Server) -> None:
        """One device: the same program as on a board, behind its link. What it reports goes beside that."""
        federation, name = self._federation, shard.device
        profile, records = self._links[name], self._records(shard)
        work, chunk, done = self._work, chunk_size(profile), federation.plan.start.completed
        every = federation.study.checkpoints if work.is_done_here else None
        kept = load_state(federation.directory, done, name) if done else None
        instance = f"{digest(federation.plan.seed, 'instance', 0, name, size=4):08x}"
        who = Identity(federation.plan.run, name, instance, len(records.samples), records.samples.shape[1],
                       uplink(profile).sustained or 0.0, downlink(profile).sustained or 0.0,
                       keepalive(profile, chunk), chunk)  # fmt: skip
        session = Session(who, self._network.behind(name), clock, stream(federation.plan.seed, "backoff", 0, name),
                          lambda text: self._journal.note(f"{name}: {text}"), kept.seq if kept else 0)  # fmt: skip

        async def report(telemetry: Telemetry) -> None:
            self._journal.observe(work.told(telemetry), server.now)

        device = Device(records, session, clock, training, report,
                        federation.study.evaluation.every if work.is_done_here else "never", self._speeds[name],
                        work.trainer(name), work.ranking, work.method(name),
                        keep=partial(save_state, federation.directory) if every else None, keep_every=every or 1,
                        resume=lambda welcome: kept,
                        silent=silences(federation.plan.seed, name, federation.study.participation.dropout),
                        secrets=emulated(federation.plan.seed, name),
        )  # fmt: skip
        model = work.ended(name, await live(device))
        if model is not None:
            save_model(self._model(shard), model, name, federation.plan.run)

    def _records(self, shard: Shard) -> Records:
        """Return a device's own records with the one test set that all share."""
        return replace(load_records(shard.path), test=self._test, labels=self._labels)

    def _measured_speed(self) -> float:
        return measured_speed(self._federation.study.training, self._records(self._federation.shards[0]))

    def _ended(self, name: str, task: "asyncio.Task[None]") -> None:
        """Let a device's failure be the fleet's."""
        if task.cancelled() or (error := task.exception()) is None or self._failure.done():
            return
        reason = in_words(error)
        told = GcaError(reason if name in reason else f"{name}: {reason}")
        # That nobody reads what is printed is no fault of the device whose report was printed.
        self._failure.set_exception(error if isinstance(error, BrokenPipeError) else told)
        self._failure.exception()  # seen, also if nobody waits any more

    async def _done(self, devices: "Sequence[asyncio.Task[None]]", completed: bool) -> None:
        """Wait until every device has gone, but not for ever for who never gets through: the study is told who missed
        the end. Links may be slow to the last byte, which costs no virtual time; after a run that ended early devices
        need not all get there."""
        loop, patience = asyncio.get_running_loop(), max(FAREWELL_S, self._federation.plan.patience_s)
        given_up: asyncio.Future[None] = loop.create_future()
        if endless := isinstance(loop, VirtualLoop) and completed:
            self._give_up_later(loop, devices, self._network.counters(), given_up)
        gone = asyncio.ensure_future(asyncio.wait(devices))
        over = asyncio.ensure_future(asyncio.wait((gone, given_up), return_when=asyncio.FIRST_COMPLETED))
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unless_failed(over), None if endless else patience)
        finally:
            gone.cancel()
        if completed:
            missing = [task.get_name() for task in devices if not task.done()]
            self._journal.missed_the_end(self._federation.plan.rounds, missing)

    def _give_up_later(
        self, loop: VirtualLoop, devices: "Sequence[asyncio.Task[None]]", before: Mapping[str, LinkCounters],
        given_up: "asyncio.Future[None]",
    ) -> None:  # fmt: skip
        """Give up once a device has tried in vain for too often: it would go on for ever."""

        def look() -> None:
            left = [task.get_name() for task in devices if not task.done()]
            now = self._network.counters()
            if any(now[name].connections - before[name].connections > TRIES for name in left):
                if not given_up.done():
                    given_up.set_result(None)
            elif left:
                loop.call_in_background(loop.time() + LOOK_S, look)

        loop.call_in_background(loop.time() + LOOK_S, look)

    async def _unless_failed(self, awaited: "asyncio.Future[T]") -> T:
        """Await something, but let the first failure of a device end the wait."""
        await asyncio.wait((awaited, self._failure), return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        return await awaited

    # ---- what is written down -----------------------------------------------------------------------------------

    def _read_links(self, round: int, device: str | None) -> None:
        self._journal.wire(round, self._network.counters(device))

    def _model(self, shard: Shard) -> Path:
        return self._federation.directory / "models" / f"{shard.device}.safetensors"

    def _state_sha256(self) -> str | None:
        paths = [self._model(shard) for shard in self._federation.shards]
        return state_sha256(paths) if all(path.exists() for path in paths) else None
