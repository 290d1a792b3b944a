"""A federation of processes, in real time: spawn, connect, run, write down, clean up."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from broker_server.server import Server
from edge_client.clock import RealClock
from edge_client.errors import GcaError, in_words
from edge_client.offload import into
from edge_client.transport.endpoint import Endpoint, endpoint
from edge_client.transport.mqtt import connector
from sim.config.devices import device_boards, device_links, name_of
from sim.config.run_plan import server_method
from sim.emulation.device_process import DeviceSpec
from sim.emulation.device_process import main as device_main
from sim.emulation.journal import Journal
from sim.emulation.models import state_sha256
from sim.emulation.network_process import NetworkSpec
from sim.emulation.network_process import main as network_main
from sim.emulation.pipe import (
    Counters,
    CountersPlease,
    DeviceDone,
    DeviceFailed,
    DeviceLog,
    DeviceTold,
    FromDevice,
    FromNetwork,
    NetworkFailed,
    NetworkUp,
)
from sim.emulation.processes import Child, fork_server, stop
from sim.emulation.runs import FAREWELL_S, Federation, Finished
from sim.emulation.workload import Shard
from sim.links.profiles import chunk_size, downlink, keepalive, uplink
from sim.torch_thread import torch_in_one_thread

T = TypeVar("T")

SWEEP_S = 2.0
"""How long a stopped server may take to leave nothing behind on the broker."""


async def run(federation: Federation, journal: Journal) -> Finished:
    """Run all rounds and return how it ended. Whatever happens, no child process survives this call.

    Raises `GcaError` when a device or the network fails; the devices have been told by then.
    """
    emulation = _Emulation(federation, journal)
    try:
        return await emulation.run()
    finally:
        emulation.closing = True
        stop(emulation.children)


class _Emulation:
    """The processes of one run and what they tell."""

    def __init__(self, federation: Federation, journal: Journal) -> None:
        self.federation, self.journal = federation, journal
        self.closing = False
        self.children: list[Child[FromDevice] | Child[FromNetwork]] = []
        self._context = fork_server(images=federation.study.training.model == "convolutional")
        self._running: set[str] = set()
        self._all_done = asyncio.Event()
        self._network_is_dead = False
        self._buried: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._network_up: asyncio.Future[NetworkUp] = asyncio.get_running_loop().create_future()
        self._server: Server
        self._readings: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def run(self) -> Finished:
        torch_in_one_thread(self.federation.study)
        network = self._start_network()
        up = await self._unless_failed(self._network_up)
        # For whoever wants to watch a device's link with a capture of their own.
        (self.federation.directory / "network.json").write_text(json.dumps(up.ports))
        clock = RealClock()

        with ThreadPoolExecutor(1) as pool:
            connect = connector(self.federation.broker or endpoint(up.broker))
            self.journal.read_links = partial(self._read_links, network)
            method = server_method(self.federation.study)
            server = self._server = Server(self.federation.plan, method, connect, clock, self.journal, into(pool))
            serving = asyncio.ensure_future(server.serve())
            try:
                await self._unless_failed(_either(server.listening.wait(), serving))
                self._start_devices(up.ports)
                outcome = await self._unless_failed(serving)
                await self._devices_done(outcome.completed)
            except (Exception, asyncio.CancelledError) as error:
                server.abort(in_words(error) if isinstance(error, Exception) else "interrupted")  # tells all at once
                if self._network_is_dead and self.federation.broker is None:  # our own broker died with it
                    server.disconnect()
                await asyncio.wait([serving], timeout=0.0 if self._network_is_dead else FAREWELL_S)
                serving.cancel()  # no more goodbyes, but it still sweeps the broker
                await asyncio.wait([serving], timeout=SWEEP_S)
                raise
            finally:
                await self._last_reading(network)
        return Finished(outcome, self._state_sha256())

    # ---- processes ----------------------------------------------------------------------------------------------

    def _start_network(self) -> Child[FromNetwork]:
        study, real = self.federation.study, self.federation.broker
        spec = NetworkSpec(
            {shard.device: name_of(study.link, shard.device) for shard in self.federation.shards},
            (real.host, real.port) if real else None,
            study.seed, self.federation.plan.start.seconds,
        )  # fmt: skip
        child: Child[FromNetwork] = Child(self._context, "network", network_main, spec, FromNetwork)
        self.children.append(child)
        child.pipe.listen(self._hear_network, self._network_gone)
        return child

    def _network_gone(self) -> None:
        self._network_is_dead = True
        self._fail("the network process has died")

    def _start_devices(self, ports: dict[str, int]) -> None:
        federation = self.federation
        links, boards = device_links(federation.study), device_boards(federation.study)
        self._running = {shard.device for shard in federation.shards}
        for number in federation.order or range(len(federation.shards)):
            shard = federation.shards[number]
            profile = links[shard.device]
            chunk = chunk_size(profile)
            spec = DeviceSpec(
                run=federation.plan.run, device=shard.device,
                broker=self._behind_link(shard.device, ports[shard.device]),
                records=str(shard.path), test=str(federation.test), model=str(self._model(shard)),
                up_rate=uplink(profile).sustained or 0.0, down_rate=downlink(profile).sustained or 0.0,
                keepalive=keepalive(profile, chunk), chunk_size=chunk, evaluate=federation.study.evaluation.every,
                flops_per_s=boards[shard.device].training_flops, seed=federation.plan.seed,
                study=str(federation.directory), keep_every=federation.study.checkpoints,
                completed=federation.plan.start.completed, dropout=federation.study.participation.dropout,
            )  # fmt: skip
            child: Child[FromDevice] = Child(self._context, shard.device, device_main, spec, FromDevice)
            self.children.append(child)
            child.pipe.listen(partial(self._hear_device, child), partial(self._device_gone, child))

    def _behind_link(self, device: str, port: int) -> Endpoint:
        """Return the broker as a device sees it: at its own link's port on this machine."""
        real = self.federation.broker or Endpoint("127.0.0.1", 0)
        user = real.username or (device if real.password else None)
        return replace(real, host="127.0.0.1", port=port, username=user, password=None, certified_as=real.host)

    def _hear_network(self, told: FromNetwork) -> None:
        match told:
            case NetworkUp():
                self._network_up.set_result(told)
            case NetworkFailed(reason):
                self._fail(reason)
            case Counters(links):
                round, booked = self._readings.popleft()
                try:
                    self.journal.wire(round, links)
                except Exception as error:  # the journal cannot write
                    self._break(error)
                booked.set_result(None)

    def _hear_device(self, child: Child[FromDevice], told: FromDevice) -> None:
        try:
            match told:
                case DeviceTold(telemetry):
                    self.journal.observe(telemetry, self._server.now)
                case DeviceLog(text):
                    self.journal.note(f"{child.name}: {text}")
                case DeviceFailed(reason, trace):
                    self._fail(reason if child.name in reason else f"{child.name}: {reason}", trace)
                case DeviceDone():
                    self._running.discard(child.name)
        except Exception as error:  # the journal cannot write, or its reader has gone
            self._break(error)

    def _device_gone(self, child: Child[FromDevice]) -> None:
        if self.closing:  # nobody is left to wait for its end, and the loop may be closing, too
            return
        burying = asyncio.ensure_future(self._bury(child))
        self._buried.add(burying)
        burying.add_done_callback(self._buried.discard)

    async def _bury(self, child: Child[FromDevice]) -> None:
        """Take note of the end of a device's process, once it has ended."""
        code = await child.ended()
        if child.name in self._running:
            self._fail(f"{child.name} died with exit code {code}")
        elif not self._running:
            self._all_done.set()

    async def _devices_done(self, completed: bool) -> None:
        """Wait until every device has written its model and gone, but not for ever for who never gets through: the
        study is told who missed the end. After a run that ended early devices need not all get there."""
        patience = max(FAREWELL_S, self.federation.plan.patience_s)  # their links may be slow to the last byte
        with suppress(TimeoutError):
            await asyncio.wait_for(self._unless_failed(self._all_done.wait()), patience)
        if completed:
            self.journal.missed_the_end(self.federation.plan.rounds, sorted(self._running))

    # ---- the wire ledger ----------------------------------------------------------------------------------------

    def _read_links(self, network: Child[FromNetwork], round: int, device: str | None) -> asyncio.Future[None]:
        """Ask for the counters of a device's link, or of all, and book them to this round; done once they are."""
        booked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readings.append((round, booked))
        network.pipe.send(CountersPlease(device))
        return booked

    async def _last_reading(self, network: Child[FromNetwork]) -> None:
        """Book what crossed since the last round, the goodbyes, to that round."""
        if not self._network_is_dead:
            await asyncio.wait([self._read_links(network, self.federation.plan.rounds, None)], timeout=FAREWELL_S)

    # ---- how it ends --------------------------------------------------------------------------------------------

    def _fail(self, reason: str, trace: str = "") -> None:
        """End the run for this reason; `trace` is the traceback of a child, which --debug shows."""
        error = GcaError(reason)
        if trace:
            error.add_note(trace)
        self._break(error)

    def _break(self, error: Exception) -> None:
        if not self.closing and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # seen, also if nobody waits any more

    async def _unless_failed(self, awaited: Awaitable[T]) -> T:
        """Await something, but let the first failure of any process end the wait within a moment."""
        task = asyncio.ensure_future(awaited)
        try:
            await asyncio.wait((task, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return task.result()
        finally:
            if not isinstance(awaited, asyncio.Future):
                task.cancel()

    def _model(self, shard: Shard) -> Path:
        return self.federation.directory / "models" / f"{shard.device}.safetensors"

    def _state_sha256(self) -> str | None:
        """The hash over all final models in device order; None when a device has not written its own."""
        paths = [self._model(shard) for shard in self.federation.shards]
        return state_sha256(paths) if all(path.exists() for path in paths) else None


async def _either(*awaited: Awaitable[object]) -> None:
    """Return when the first of these is done; raise if it failed."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
