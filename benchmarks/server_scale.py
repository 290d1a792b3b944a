"""One server process and all its devices on mosquitto: time to connect, memory, and how long a round takes.

    python -m benchmarks.server_scale [--devices 1000] [--rounds 5] [--processes 2]
    python -m benchmarks.server_scale --devices 100 --rounds 200        whether the server's memory stays flat

The devices are the real ones over real TCP, many to a process, but do not train (synthetic compute), so a round is what
protocol, broker and server make of it. They share this machine with the server and the broker: the seconds are those
of all of them together. Memory is the resident set of the server's process alone.
"""

import argparse
import asyncio
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from broker_server.broker.mosquitto import mosquitto_conf
from broker_server.clustering import ClusteringSpec
from broker_server.methods.gca import GcaServer
from broker_server.plan import RunPlan
from broker_server.server import Server
from broker_server.study.records import RoundRecord
from broker_server.study.start import Start
from edge_client.clock import RealClock
from edge_client.conversation.identity import Identity
from edge_client.conversation.session import Session
from edge_client.data.records import Records
from edge_client.device import Device, live
from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol.messages import Telemetry
from edge_client.seeds import digest, stream
from edge_client.transport.endpoint import Endpoint
from edge_client.transport.mqtt import connector
from sim.fleet.synthetic import SyntheticWork

RUN, SEED, WIDTH, RECORDS = "scale", 7, 14, 50
HYPER = Hyperparameters(hidden=(16,), latent_dim=4, recon_epochs=1, align_epochs=1, upload_fraction=0.4)
SPEC = ClusteringSpec("kmeans", 10, initialisations=1, max_iterations=10)
FILES_PER_CLIENT = 6
"""Sockets that a client of the library holds, and room."""
PATIENCE_S = 300.0


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def allow_files(count: int) -> None:
    """Let this process open so many files, if the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (min(count, hard) if hard != resource.RLIM_INFINITY else count, hard)
        )


# ---- devices -----------------------------------------------------------------------------------------------------


async def at_once(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The offload of work that takes no time."""
    return function(*args, **kwargs)


async def device(number: int, port: int) -> None:
    name = f"dev-{number:05d}"
    records = Records(stream(SEED, "records", 0, name).normal(size=(RECORDS, WIDTH)).astype(np.float32))
    who = Identity(RUN, name, f"{digest(SEED, 'instance', 0, name, size=4):08x}", RECORDS, WIDTH)
    connect = connector(Endpoint("127.0.0.1", port))
    session = Session(who, connect, RealClock(), stream(SEED, "backoff", 0, name), lambda text: None)
    trainer = SyntheticWork(SEED).trainer(name)
    await live(Device(records, session, RealClock(), at_once, session.report, "never", None, trainer))


async def devices(first: int, count: int, port: int) -> None:
    allow_files(FILES_PER_CLIENT * count)
    await asyncio.gather(*(device(number, port) for number in range(first, first + count)))


# ---- the server --------------------------------------------------------------------------------------------------


class Watch:
    """A sink that keeps moments and memory, and nothing else."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, float, float, int]] = []
        """Of each: seconds from opening to the last upload, to the broadcast, resident MB, uploads."""
        self.joined_mb = 0.0
        self.notes: list[str] = []
        self.telemetry = 0

    def opened(self, round: int, devices: int) -> None:
        if round == 1:
            self.joined_mb = resident_mb()

    def record(self, record: RoundRecord) -> None:
        opened = record.opened_s
        self.rounds.append(
            (record.closed_s - opened, record.published_s - opened, resident_mb(), len(record.accepted))
        )  # fmt: skip

    def observe(self, telemetry: Telemetry, now: float) -> None:
        self.telemetry += 1

    def note(self, text: str) -> None:
        self.notes.append(text)

    def checkpoint(self, reached: Start) -> None: ...

    def uploaded(self, device: str, round: int) -> None: ...

    def amend(self, amendment: object) -> None: ...

    def closing(self, closing: object) -> None: ...


async def serve(count: int, rounds: int, port: int, start_devices: Callable[[], None]) -> tuple[Watch, float, float]:
    """Run to the end; return what was seen, the seconds until all had joined, and the resident MB before."""
    plan = RunPlan(run=RUN, incarnation="5f0c21aa", method="gca", seed=SEED, rounds=rounds, hyper=HYPER, devices=count,
                   minimum_devices=count, quorum=count, patience_s=PATIENCE_S)  # fmt: skip
    method = GcaServer(HYPER.latent_dim, HYPER.upload_fraction, SPEC, SEED)
    watch = Watch()

    def aggregate(job: Callable[[], Any]) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(None, job)

    server = Server(plan, method, connector(Endpoint("127.0.0.1", port)), RealClock(), watch, aggregate)
    serving = asyncio.ensure_future(server.serve())
    await server.listening.wait()
    before, began = resident_mb(), time.monotonic()
    start_devices()
    while not watch.joined_mb and not serving.done():  # noqa: ASYNC110 - to a hundredth of a second is exact enough
        await asyncio.sleep(0.01)
    connected = time.monotonic() - began
    outcome = await serving
    assert outcome.completed, (outcome, watch.notes[-3:])
    return watch, connected, before


def measure(count: int, rounds: int, processes: int) -> None:
    import torch  # before memory is read: clustering would import it in the first round

    torch.set_num_threads(1)
    mosquitto = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if mosquitto is None:
        raise SystemExit("this needs the mosquitto broker")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    allow_files(4 * count)  # handed on to mosquitto, which takes one for each client
    running: list[subprocess.Popen[bytes]] = []

    def start_devices() -> None:
        share = -(-count // processes)
        for first in range(0, count, share):
            told = (str(first), str(min(share, count - first)), str(port))
            running.append(subprocess.Popen([sys.executable, "-m", "benchmarks.server_scale", "--devices-of", *told]))

    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mosquitto.conf"
        config.write_text(mosquitto_conf(port, user="root" if os.geteuid() == 0 else None))
        broker = subprocess.Popen([mosquitto, "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            watch, connected, before = asyncio.run(serve(count, rounds, port, start_devices))
            for one in running:
                one.wait(timeout=60)
        finally:
            for one in (*running, broker):
                one.kill()
                one.wait()
    tell(count, watch, connected, before)


def tell(count: int, watch: Watch, connected: float, before: float) -> None:
    collected = [closed for closed, _, _, _ in watch.rounds]
    whole = sorted(published for _, published, _, _ in watch.rounds)
    memory = [mb for _, _, mb, _ in watch.rounds]
    assert all(uploads == count for *_, uploads in watch.rounds)
    print(f"{count} devices joined {connected:.1f} s after their processes were started ({count / connected:.0f}/s)")
    print(f"memory of the server: {before:.1f} MB before, {watch.joined_mb:.1f} MB with all "
          f"({(watch.joined_mb - before) / count * 1000:.1f} kB each)")  # fmt: skip
    print(f"{len(whole)} rounds, every upload of every device in: {statistics.median(whole):.2f} s in the median, "
          f"{whole[int(0.95 * (len(whole) - 1))]:.2f} s at the 95th percentile, of which "
          f"{statistics.median(collected):.2f} s until the last upload was in")  # fmt: skip
    settled = min(9, len(memory) - 1)
    print(f"memory after round {settled + 1}: {memory[settled]:.1f} MB, after {len(memory)}: {memory[-1]:.1f} MB, "
          f"most {max(memory):.1f} MB; {watch.telemetry} reports")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices-of", type=int, nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.devices_of:
        asyncio.run(devices(*asked.devices_of))
    else:
        measure(asked.devices, asked.rounds, asked.processes)


if __name__ == "__main__":
    main()
