"""What a fleet in virtual time costs, per device and round.

    python -m benchmarks.fleet network  [--devices 1000] [--rounds 100]    loop, links and broker core alone
    python -m benchmarks.fleet protocol [--devices 1000] [--rounds 20]     all but the arithmetic (synthetic compute)
    python -m benchmarks.fleet gca      [--devices 1000] [--rounds 10]     GCA, against a tenth of the devices

`gca` also says how much of a device-round passes in the loop's own thread (protocol, broker, store) and how much in the
threads that train, judge and aggregate; `--profile` adds the loop's thread by function.

Targets: network 60 us; protocol 500 us and 500 MB; gca memory flat from round 3, 1 MB a device, cost per device-round
within 10 % of that of a tenth of the devices.
"""

import argparse
import asyncio
import cProfile
import pstats
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from broker_server.study.records import RoundRecord
from broker_server.study.store import StudyStore
from edge_client.transport.base import Settings, Transport
from sim.config.run_plan import run_plan
from sim.config.study import Study
from sim.data.partition import device_name
from sim.emulation.journal import Journal
from sim.emulation.runs import Federation
from sim.emulation.workload import Shard
from sim.fleet.federation import run
from sim.fleet.loop import VirtualLoop
from sim.fleet.memory import rare_collection
from sim.fleet.network import Network
from sim.links.profiles import link
from sim.screen.progress import Quiet

LINKS = ("nbiot-nb2-peak", "lte-m-hd-peak", "256kbit/1mbit/100ms", "2mbit/4mbit/20ms")
RECORDS, WIDTH, TEST = 564, 14, 1000
COMPUTE_S = 20.0


def resident_mb() -> float:
    """Return the memory of this process in MB, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


# ---- the network alone -------------------------------------------------------------------------------------------


async def network_alone(devices: int, rounds: int) -> tuple[float, int]:
    """One broadcast of 1 kB to all, some computing, one upload of 2 kB from each, all acknowledged; return the
    virtual seconds, and the bytes on all links."""
    names = [f"dev-{n:05d}" for n in range(devices)]
    network = Network({name: link(LINKS[n % len(LINKS)]) for n, name in enumerate(names)}, seed=1)
    down, up = bytes(1_000), bytes(2_000)

    async def device(name: str, number: int) -> None:
        async with network.behind(name)(Settings(name, keepalive=600)) as transport:
            await transport.subscribe("down")
            taken = 0
            async for message in transport.messages():
                transport.acknowledge(message)
                await asyncio.sleep(COMPUTE_S + number % 7)
                await transport.publish(f"up/{name}", up)
                taken += 1
                if taken == rounds:
                    return

    async def gather(transport: Transport) -> None:
        taken = 0
        async for message in transport.messages():
            transport.acknowledge(message)
            taken += 1
            if taken == devices:
                return

    async with network.beside(Settings("server", persistent=True)) as server:
        await server.subscribe("up/+")
        tasks = [asyncio.create_task(device(name, n), name=name) for n, name in enumerate(names)]
        await asyncio.sleep(60)  # until all have subscribed
        for _ in range(rounds):
            await server.publish("down", down)
            await gather(server)
        await asyncio.gather(*tasks)
    counters = network.counters().values()
    return asyncio.get_running_loop().time(), sum(c.up.stream_bytes + c.down.stream_bytes for c in counters)


def network(devices: int, rounds: int) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, rare_collection(devices):
        began = time.process_time()
        virtual, crossed = runner.run(network_alone(devices, rounds))
        spent = time.process_time() - began
    print(f"network: {devices} devices x {rounds} rounds, {virtual / 3600:.1f} virtual hours, {crossed / 1e6:.0f} MB")
    print(f"  {spent:.2f} s CPU, {spent / devices / rounds * 1e6:.0f} us per device-round, {resident_mb():.0f} MB")


# ---- whole runs --------------------------------------------------------------------------------------------------


class Rounds(Quiet):
    """Notes at the end of every round: processor seconds of all threads, those of the loop's, and memory in MB."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float, float]] = []

    def round_opened(self, round: int, devices: int) -> None:
        if round == 1:
            self._note()

    def round_done(self, record: RoundRecord, accuracy: float) -> None:
        self._note()

    def _note(self) -> None:
        self.ends.append((time.process_time(), time.thread_time(), resident_mb()))


def whole_run(study: Study) -> Rounds:
    """Run a study on records drawn at random, without its data files."""
    rng, display = np.random.default_rng(1), Rounds()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "models").mkdir()
        shards = []
        centres = rng.normal(size=(8, WIDTH))
        for number in range(1, study.devices + 1):
            path = directory / f"{device_name(number)}.npz"
            kinds = rng.integers(0, len(centres), RECORDS)
            np.savez(path, samples=(centres[kinds] + rng.normal(size=(RECORDS, WIDTH))).astype(np.float32))
            shards.append(Shard(path.stem, RECORDS, path))
        test = directory / "test.npz"
        samples = rng.normal(size=(TEST, WIDTH)).astype(np.float32)
        np.savez(test, test=samples, labels=(np.arange(TEST) % 2).astype(np.int8))
        plan = run_plan(study, "bench")
        with StudyStore.create(directory) as store, asyncio.Runner(loop_factory=VirtualLoop) as runner:
            journal = Journal(store, store.begin_run(plan, study.devices, study.dataset), display)
            federation = Federation(study, plan, tuple(shards), test, directory)
            finished = runner.run(run(federation, journal))
            journal.close()
        assert finished.outcome.completed, finished.outcome
    return display


def study(devices: int, rounds: int, **changes: Any) -> Study:
    import msgspec

    fields: dict[str, Any] = {
        "dataset": "magic", "devices": devices, "rounds": rounds, "link": "256kbit/1mbit/100ms", "clock": "virtual",
        "hardware": "pi-zero-2-w",
        "clustering": {"algorithm": "kmeans", "components": 10, "initialisations": 1, "max_iterations": 5},
        "evaluation": {"every": "round"}, **changes,
    }  # fmt: skip
    return msgspec.convert(fields, Study)


def protocol(devices: int, rounds: int) -> None:
    short = {"recon_epochs": 1, "align_epochs": 1, "upload_fraction": 0.02}
    rounds_ = whole_run(study(devices, rounds, compute="synthetic", training=short)).ends
    spent = rounds_[-1][0] - rounds_[0][0]
    print(f"protocol: {devices} devices x {rounds} rounds, synthetic compute")
    print(f"  {spent:.2f} s CPU, {spent / devices / rounds * 1e6:.0f} us per device-round, {resident_mb():.0f} MB")


def gca(devices: int, rounds: int) -> None:
    """A tenth of the devices first: the smaller run leaves less behind."""
    costs = {}
    for size in (devices // 10, devices):
        ends = whole_run(study(size, rounds)).ends
        whole, loop = ((ends[-1][which] - ends[2][which]) / size / (len(ends) - 3) * 1e3 for which in (0, 1))
        costs[size] = whole
        memory = " ".join(f"{mb:.0f}" for *_, mb in ends)
        print(f"gca: {size} devices x {RECORDS} records x {rounds} rounds: {whole:.2f} ms CPU per device-round,")
        print(f"  {loop:.2f} in the loop's thread, {whole - loop:.2f} in those that train, judge and aggregate")
        print(f"  MB at the opening and after each round: {memory}")
    print(f"  cost of {devices} against {devices // 10} devices: {costs[devices] / costs[devices // 10]:.3f}")


@contextmanager
def profiled(wanted: bool) -> Any:
    if not wanted:
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    yield
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("network", "protocol", "gca"))
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    parts: dict[str, tuple[Callable[[int, int], None], int]] = {
        "network": (network, 100), "protocol": (protocol, 20), "gca": (gca, 10),
    }  # fmt: skip
    part, rounds = parts[arguments.part]
    with profiled(arguments.profile):
        part(arguments.devices, arguments.rounds or rounds)


if __name__ == "__main__":
    main()
