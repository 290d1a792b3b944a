"""A whole federation in one process: the real server, real devices and real training over the broker in memory."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any
from zlib import crc32

import numpy as np
from memory_broker import MemoryBroker

from broker_server.clustering import ClusteringSpec
from broker_server.methods.gca import GcaServer
from broker_server.plan import RunPlan
from broker_server.server import Server
from broker_server.study.records import Amendment, Closing, Outcome, RoundRecord
from broker_server.study.start import Start
from edge_client.conversation.identity import Identity
from edge_client.conversation.session import Session
from edge_client.data.records import Records
from edge_client.device import Device, live
from edge_client.hyperparameters import Hyperparameters
from edge_client.model.trainer import ModelState
from edge_client.offload import into
from edge_client.protocol.codec import Arrays
from edge_client.protocol.messages import Telemetry
from edge_client.seeds import stream

WIDTH, RECORDS = 5, 40
HYPER = Hyperparameters(hidden=(8,), latent_dim=3, batch_size=10, recon_epochs=1, align_epochs=1, upload_fraction=0.5)
PLAN = RunPlan(run="tiny", incarnation="5f0c21aa", method="gca", seed=7, rounds=3, hyper=HYPER, devices=4,
               minimum_devices=4, quorum=1, patience_s=50.0, chunk_size=64)  # fmt: skip
SPEC = ClusteringSpec("kmeans", 4)


SPEED = 25.0
TICK_S = 0.002


class ImpatientClock:
    """Time that passes `SPEED` times as fast, for back-off and deadlines alike, in ticks of the event loop.

    A machine that is busy elsewhere holds up the ticks as it holds up the devices. By its own clock the time would run
    on meanwhile, `SPEED` times as fast, and a device would be late for no reason that the test gave.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._numbers = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._ticking: asyncio.Task[None] | None = None

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self._now + seconds, next(self._numbers), awake))
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.ensure_future(self._tick())
        await awake

    async def _tick(self) -> None:
        """Move the time on for as long as anyone sleeps."""
        while any(not awake.done() for _, _, awake in self._sleepers):
            await asyncio.sleep(TICK_S)
            self._now += TICK_S * SPEED
            while self._sleepers and self._sleepers[0][0] <= self._now:
                _, _, awake = heappop(self._sleepers)
                if not awake.done():
                    awake.set_result(None)
        self._sleepers.clear()


@dataclass
class Told:
    """A sink that remembers."""

    records: list[RoundRecord] = field(default_factory=list)
    telemetry: list[Telemetry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    closings: list[Closing] = field(default_factory=list)
    amendments: list[Amendment] = field(default_factory=list)
    checkpoints: list[Arrays] = field(default_factory=list)

    def record(self, record: RoundRecord) -> None:
        self.records.append(record)

    def observe(self, telemetry: Telemetry, now: float) -> None:
        self.telemetry.append(telemetry)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def uploaded(self, device: str, round: int) -> None: ...

    def opened(self, round: int, devices: int) -> None: ...

    def checkpoint(self, reached: Start) -> None:
        self.checkpoints.append(reached.broadcast or {})

    def amend(self, amendment: Amendment) -> None:
        self.amendments.append(amendment)

    def closing(self, closing: Closing) -> None:
        self.closings.append(closing)


def records_of(device: str, width: int = WIDTH) -> Records:
    """Normal records of a device and a test set with anomalies, a pure function of its name."""
    rng = stream(1, "records", 0, device)
    samples = rng.normal(size=(RECORDS, width)).astype(np.float32)
    test = np.concatenate([samples[:10], rng.normal(loc=4, size=(10, width)).astype(np.float32)])
    return Records(samples, test, np.repeat(np.array([0, 1], np.int8), 10))


class Federation:
    """One run in one event loop; all local training shares one thread."""

    def __init__(self, plan: RunPlan = PLAN, method: Any = None) -> None:
        self.plan, self.broker, self.told = plan, MemoryBroker(), Told()
        self.method = method or GcaServer(plan.hyper.latent_dim, plan.hyper.upload_fraction, SPEC, plan.seed)
        self.pool = ThreadPoolExecutor(1)
        self.clock = ImpatientClock()
        self.logs: list[str] = []
        self.reports: list[Telemetry] = []
        self.server = Server(plan, self.method, self.broker.connect, self.clock, self.told, into(self.pool))

    def session(self, name: str, *, width: int = WIDTH, **fields: Any) -> Session:
        number = sum(log.startswith(f"{name} starts") for log in self.logs)
        self.logs.append(f"{name} starts")
        instance = f"{crc32(f'{name} {number}'.encode()):08x}"
        who = replace(Identity(self.plan.run, name, instance, RECORDS, width, chunk_size=64), **fields)
        return Session(who, self.broker.connect, self.clock, stream(1, "backoff", 0, name), self.logs.append)

    def device(self, name: str, *, width: int = WIDTH, records: Records | None = None, pace: Any = None,
               **fields: Any) -> Device:  # fmt: skip
        records = records or records_of(name, width)
        session = self.session(name, width=width, samples=len(records.samples), **(pace or {}))

        async def report(telemetry: Telemetry) -> None:
            self.reports.append(telemetry)
            await session.report(telemetry)

        device = Device(records, session, self.clock, into(self.pool), report, "phase")
        return replace(device, **fields)

    async def run(
        self, names: Iterable[str] = "abcd", *, also: Any = None, server_first: bool = False
    ) -> tuple[Outcome, dict[str, ModelState]]:
        """Run the server and these devices, started in this order, to the end; `also` runs beside them."""
        serving = asyncio.ensure_future(self.server.serve())
        beside = asyncio.ensure_future(also) if also is not None else None
        names = list(names)
        try:
            async with asyncio.timeout(15):
                if server_first:
                    await self.broker.heard.wait()
                states = await asyncio.gather(*(live(self.device(name)) for name in names))
                return await serving, dict(zip(names, states, strict=True))
        finally:
            for task in (serving, beside):
                if task is not None and not task.done():
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
            self.pool.shutdown(wait=False)
