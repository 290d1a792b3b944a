"""Runs that are hurt: by the thousand in virtual time, by the dozen in real time.

    python -m benchmarks.chaos [--count 1000] [--first 0]   schedules in virtual time; the exit code is 1 for any flaw
    python -m benchmarks.chaos --seed N                     one of them, with all that happened
    python -m benchmarks.chaos --real [--count 12]          processes behind links on mosquitto, which is killed and
                                                            started again, or has connections cut, at drawn instants

What must hold of a run in virtual time says `tests/chaos/verdict.py`. Those in real time must end with the hash of an
undisturbed one.
"""

import argparse
import asyncio
import logging
import os
import random
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from chaos.faults import gentle, schedule, setting
from chaos.run import judged, told, undisturbed

from broker_server.broker.mosquitto import mosquitto_conf
from edge_client.clock import RealClock
from sim.links.profiles import link
from sim.links.proxy import ShapingProxy

MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
STUDY = """
dataset = "breast_cancer"
devices = 4
rounds = 40
link = "256kbit/1mbit/40ms"
[training]
hidden = [8]
latent_dim = 4
[clustering]
components = 3
"""
LONGEST_S = 120.0


# ---- virtual time ------------------------------------------------------------------------------------------------


def virtual(seeds: range) -> int:
    began, flawed = time.monotonic(), []
    ends, faults, same = Counter[str](), Counter[str](), 0
    for seed in seeds:
        ended = judged(seed)
        faults.update(fault.kind for fault in schedule(seed))
        ends["completed" if ended.terminal == "completed" else "ended with a reason"] += 1
        same += ended.state is not None and ended.state == undisturbed(setting(seed)).state
        if ended.flaws:
            flawed.append(seed)
            print(told(seed, ended), flush=True)
    mild = sum(gentle(schedule(seed), setting(seed)) for seed in seeds)
    print(f"{len(seeds)} schedules, {sum(faults.values())} faults, {time.monotonic() - began:.0f} s: "
          f"{', '.join(f'{count} {end}' for end, count in ends.items())}; {same} with the undisturbed run's models "
          f"({mild} had to); {len(flawed)} with flaws {flawed or ''}")  # fmt: skip
    print("  " + ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items())))
    return 1 if flawed else 0


# ---- real time ---------------------------------------------------------------------------------------------------


class Broker:
    """mosquitto, with a study in its folder, behind a relay whose connections can be cut. With `persistence` it
    remembers across its deaths."""

    def __init__(self, folder: Path, persistence: bool) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        folder.mkdir()
        (folder / "study.toml").write_text(STUDY)
        self._config = folder / "mosquitto.conf"
        kept = folder / "kept" if persistence else None
        if kept is not None:
            kept.mkdir()
        user = "root" if os.geteuid() == 0 else None
        self._config.write_text(mosquitto_conf(self._port, persistence_dir=kept, user=user))
        self.relay = ShapingProxy(link("none"), "127.0.0.1", self._port, clock=RealClock(), seed=0, device="relay")

    async def start(self) -> None:
        assert MOSQUITTO is not None, "this needs the mosquitto broker"
        self._process = await asyncio.create_subprocess_exec(
            MOSQUITTO, "-c", str(self._config), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )

    async def busy(self) -> None:
        """Return once the devices are there: the relay has as many connections as a run has clients."""
        while self.relay.counters().connections < 5:  # noqa: ASYNC110 - a counter tells nobody when it moves
            await asyncio.sleep(0.02)

    async def stop(self, *, kindly: bool) -> None:
        if self._process.returncode is None:
            self._process.terminate() if kindly else self._process.kill()
        await self._process.wait()


async def hurt(broker: Broker, chance: random.Random, seconds: float, persistence: bool) -> str:
    """Do two things to a run at instants within so many seconds; return what."""
    instants = sorted(chance.uniform(0.1, 0.9) * seconds for _ in range(2))
    began, done = time.monotonic(), []
    for instant in instants:
        await asyncio.sleep(max(0.0, instant - (time.monotonic() - began)))
        match chance.choice(["broker", "one connection", "all connections"]):
            case "broker":
                away = chance.uniform(0.0, 1.5)
                # What mosquitto keeps it writes down as it ends; killed, it has nothing to remember.
                await broker.stop(kindly=persistence)
                await asyncio.sleep(away)
                await broker.start()
                done.append(f"broker {'ended' if persistence else 'killed'} at {instant:.1f} s for {away:.1f} s")
            case "one connection":
                if open_ones := sorted(broker.relay._connections, key=id):
                    chance.choice(open_ones).reset()
                done.append(f"a connection cut at {instant:.1f} s")
            case _:
                broker.relay.reset_connections()
                done.append(f"all connections cut at {instant:.1f} s")
    return "; ".join(done)


async def study(folder: Path, number: int | None, seconds: float) -> tuple[str, str, float]:
    """Run the study, hurt it unless `number` is None, and return what was done, how it ended, and how long it took."""
    persistence = bool(number and number % 2)
    broker = Broker(folder, persistence)
    await broker.start()
    try:
        port = await broker.relay.start()
        began = time.monotonic()
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sim.cli", "simulate", str(folder / "study.toml"), "--quiet",
            "--broker", f"mqtt://127.0.0.1:{port}", "--output", str(folder / "run"),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        done = ""
        if number is not None:
            await asyncio.wait_for(broker.busy(), LONGEST_S)
            done = await hurt(broker, random.Random(f"real {number}"), seconds, persistence)
        _, errors = await asyncio.wait_for(running.communicate(), LONGEST_S)
        took = time.monotonic() - began
    finally:
        await broker.stop(kindly=True)
        await broker.relay.close()
    if running.returncode:
        return done, errors.decode().strip().splitlines()[-1], took
    connection = sqlite3.connect(folder / "run" / "study.sqlite")
    clock, state = connection.execute("SELECT seconds_clock, state_sha256 FROM runs").fetchone()
    connection.close()
    return done, str(state), clock


async def real(count: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        _, expected, seconds = await study(Path(scratch) / "undisturbed", None, 0.0)
        print(f"undisturbed: {seconds:.1f} s, {expected[:16]}")
        same = 0
        for number in range(count):
            done, state, took = await study(Path(scratch) / str(number), number, seconds)
            same += state == expected
            verdict = "same" if state == expected else f"DIFFERENT: {state[:120]}"
            print(f"{number:>3}  {took:5.1f} s  {verdict}  {done}", flush=True)
    print(f"{same} of {count} ended as the undisturbed run")
    return 0 if same == count else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--real", action="store_true")
    asked = parser.parse_args()
    if asked.seed is not None:
        ended = judged(asked.seed)
        print(told(asked.seed, ended))
        return 1 if ended.flaws else 0
    if asked.real:
        logging.disable(logging.WARNING)  # the relay reports every refusal of a broker that is away
        return asyncio.run(real(asked.count or 12))
    return virtual(range(asked.first, asked.first + (asked.count or 1000)))


if __name__ == "__main__":
    raise SystemExit(main())
