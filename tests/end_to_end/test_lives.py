"""`gca server` and `gca device` that are killed and started again: the run ends as one that was left in peace."""

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from brokers import RunningBroker, open_broker
from device.in_memory import Told
from end_to_end.test_server_and_devices import Program, device, gca, records  # noqa: F401 - a fixture
from memory_broker import MemoryBroker

from broker_server.server import Server
from broker_server.study.store import StudyStore
from edge_client.clock import RealClock
from edge_client.conversation.identity import Identity
from edge_client.conversation.session import Session
from edge_client.data.records import load_records
from edge_client.device import Device, live
from edge_client.offload import into
from edge_client.seeds import stream
from sim.config.run_plan import run_plan, server_method
from sim.config.study import load_study, parse_override

ROUNDS = 20
NAMES = ("pi-a", "pi-b")


CONFIG = ("devices=2", f"rounds={ROUNDS}", "training.upload_fraction=0.5", "training.upload_codec=int8",
          "training.broadcast_codec=int8", "training.hidden=[32]")  # fmt: skip


@dataclass
class Shelf:
    """A server and two devices on one broker, each of which can be killed and started again."""

    broker: RunningBroker
    folder: Path
    stack: AsyncExitStack
    config: tuple[str, ...]
    records: dict[str, Path]
    devices: dict[str, Program] = field(default_factory=dict)

    async def serve(self, *more: str) -> None:
        settings = [word for one in self.config for word in ("--set", one)]
        words = more or ("demo", *settings, "--run", "shelf", "--output", str(self.folder / "study"))
        self.server = await self.stack.enter_async_context(gca("server", *words, "--broker", self.broker.url))

    async def resume(self) -> None:
        await self.serve("--resume", str(self.folder / "study"))

    async def start(self, name: str) -> None:
        kept = ("--state", str(self.folder / "state"), "--model", str(self.folder / f"{name}.npz"))
        self.devices[name] = await self.stack.enter_async_context(device(self.broker, name, self.records[name], *kept))

    async def kill(self, program: Program) -> None:
        program.process.send_signal(signal.SIGKILL)
        await program.ended()

    async def reached(self, name: str, round: int) -> None:
        """Wait until a device has come to the end of this round, or a later one."""
        async with asyncio.timeout(60):
            while not any(
                f"round {r}: " in line for line in self.devices[name].lines for r in range(round, ROUNDS + 1)
            ):
                for program in (self.server, self.devices[name]):
                    assert not program._reading.done(), program.lines
                await asyncio.sleep(0.002)

    async def end(self) -> dict[str, bytes]:
        """Wait for all to end well, and return the final models."""
        programs = [self.server, *self.devices.values()]
        ended = [await program.ended(90) for program in programs]
        assert ended == [0, 0, 0], [program.lines[-6:] for program in programs]
        assert not list((self.folder / "state").iterdir())  # a run that is complete leaves nothing to go on from
        models = {}
        for name in NAMES:
            with np.load(self.folder / f"{name}.npz") as file:
                models[name] = file["parameters"].tobytes()
        return models

    def rows(self, query: str) -> list[tuple]:
        with StudyStore.open(self.folder / "study") as store:
            return store.rows(query)


async def left_in_peace(config: tuple[str, ...], shards: list[Path]) -> dict[str, bytes]:
    """The models of the same run in one process over a broker in memory, which nothing disturbs."""
    study = load_study("demo", dict(parse_override(one) for one in config))
    broker, models = MemoryBroker(), {}
    with ThreadPoolExecutor(1) as pool:
        server = Server(run_plan(study, "shelf"), server_method(study), broker.connect, RealClock(), Told(), into(pool))

        async def take_part(name: str, path: Path) -> None:
            records = load_records(path)
            who = Identity("shelf", name, name[-1] * 8, *records.samples.shape)
            session = Session(who, broker.connect, RealClock(), stream(1, "backoff", 0, name), lambda text: None)
            state = await live(Device(records, session, RealClock(), into(pool), session.report, "never"))
            models[name] = state.parameters.tobytes()

        async with asyncio.timeout(60):
            outcome, *_ = await asyncio.gather(server.serve(), *map(take_part, NAMES, shards))
    assert outcome.completed
    return models


@pytest.mark.parametrize(
    ("kind", "method"), [("embedded", "fedavg"), pytest.param("mosquitto", "gca", marks=pytest.mark.mosquitto)]
)
async def test_whoever_is_killed_goes_on_where_it_was(
    kind: str,
    method: str,
    tmp_path: Path,
    records: list[Path],  # noqa: F811
) -> None:
    """The server is killed, then a device, then both at once."""
    config = (*CONFIG, f"method={method}")
    async with open_broker(kind) as broker, AsyncExitStack() as stack:
        shelf = Shelf(broker, tmp_path, stack, config, dict(zip(NAMES, records, strict=False)))
        await shelf.serve()
        for name in NAMES:
            await shelf.start(name)
        await shelf.reached("pi-a", 3)
        await shelf.kill(shelf.server)
        await shelf.resume()
        await shelf.server.says("resumed: the run goes on after round")
        await shelf.reached("pi-a", 8)
        await shelf.kill(shelf.devices["pi-b"])
        await shelf.start("pi-b")
        await shelf.devices["pi-b"].says("pi-b: goes on after round")
        await shelf.reached("pi-b", 13)
        await asyncio.gather(shelf.kill(shelf.server), shelf.kill(shelf.devices["pi-a"]))
        await asyncio.gather(shelf.start("pi-a"), shelf.resume())
        models = await shelf.end()
    fates = shelf.rows("SELECT round, device FROM participants WHERE fate = 'accepted' ORDER BY round, device")
    assert fates == [(round, name) for round in range(1, ROUNDS + 1) for name in NAMES]
    ((name, completed),) = shelf.rows("SELECT name, completed FROM runs")
    assert name.startswith("shelf.") and name.endswith(".2") and completed == 1
    assert models == await left_in_peace(config, records[:2])
