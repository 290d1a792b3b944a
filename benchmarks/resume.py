"""Real runs that lose a process: each must complete, or go on to what the undisturbed run ended with.

    python -m benchmarks.resume [RUNS]

One study is run undisturbed, then RUNS times (default 20) over real MQTT in processes, and each time something is
killed at an instant drawn from a seed: the program, the network (with the broker), one device, or all at once; every
third time the resumed run is killed as well. Reported is where each went on; the exit code is 1 if any ended otherwise.
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STUDY = """
dataset = "breast_cancer"
devices = 4
rounds = 30
[training]
hidden = [8]
latent_dim = 4
[clustering]
components = 3
"""
VICTIMS = ("program", "network", "device", "all")
LONGEST_S = 120.0
EVALUATIONS = "SELECT round, device, phase, epoch, loss, threshold, accuracy, auroc, average_precision FROM evaluations"
UPLOADS = "SELECT round, device, fate FROM participants"
BYTES = """SELECT side, round, device, direction, kind, messages, payload_bytes, message_bytes FROM transfers
           WHERE kind IN ('upload', 'broadcast')"""


def outcome(folder: Path) -> dict[str, Any]:
    """Return what a study must end with, however often it was stopped."""
    connection = sqlite3.connect(folder / "study.sqlite")
    try:
        tables = {query.split()[-1]: sorted(connection.execute(query)) for query in (EVALUATIONS, UPLOADS)}
        tables["transfers"] = sorted(connection.execute(BYTES))
        tables["state"] = connection.execute("SELECT completed, state_sha256 FROM runs").fetchall()
        return tables
    finally:
        connection.close()


def start(*arguments: str) -> "subprocess.Popen[str]":
    """Start `gca simulate` as the head of a process group."""
    command = [sys.executable, "-m", "sim.cli", "simulate", *arguments, "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)


def children(pid: int) -> dict[str, int]:
    """Return the processes below this one by name."""
    found: dict[str, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != pid:
            with suppress(OSError):
                if os.getsid(int(entry.name)) == pid:
                    found[(entry / "comm").read_text().strip()] = int(entry.name)
    return found


def kill(run: "subprocess.Popen[str]", victim: str, chance: random.Random) -> str:
    """Kill a part of a run and wait for the rest to end; say what was killed."""
    family = children(run.pid)
    devices = sorted(name for name in family if name.startswith("dev-"))
    name = chance.choice(devices) if victim == "device" and devices else victim
    with suppress(ProcessLookupError):
        if victim == "all":
            os.killpg(run.pid, signal.SIGKILL)
        else:
            os.kill(family.get(name, run.pid), signal.SIGKILL)
    run.communicate(timeout=LONGEST_S)
    return name if name in family or victim in ("program", "all") else "program"


@dataclass(frozen=True)
class Told:
    killed: str
    after: str
    resumed: str
    same: bool


def one(number: int, config: Path, folder: Path, seconds: float, expected: dict[str, Any]) -> Told:
    chance = random.Random(number)
    victim, wait = VICTIMS[number % len(VICTIMS)], chance.uniform(0.3, 1.0) * seconds
    run = start(str(config), "--output", str(folder))
    killed, code = "", None
    for life in range(2 if number % 3 == 2 else 1):
        if life:
            run, wait = start("--resume", str(folder)), chance.uniform(0.3, 1.0) * seconds
        time.sleep(wait)
        killed += (", " if life else "") + kill(run, victim, chance) + f" at {wait:.1f} s"
    if (folder / "study.toml").exists():
        done = start("--resume", str(folder))
    else:  # so early that there was no study yet
        shutil.rmtree(folder, ignore_errors=True)
        done = start(str(config), "--output", str(folder))
    _, errors = done.communicate(timeout=LONGEST_S)
    code = done.returncode
    connection = sqlite3.connect(folder / "study.sqlite")
    notes = [row[0] for row in connection.execute("SELECT detail FROM events WHERE detail LIKE 'resumed%' ORDER BY rowid")]
    connection.close()
    same = code == 0 and outcome(folder) == expected
    if not same:
        print(errors, [k for k, v in outcome(folder).items() if v != expected[k]])
    return Told(killed, "", "; ".join(notes) or "had completed", same)


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "study.toml"
        config.write_text(STUDY)
        began = time.monotonic()
        whole = start(str(config), "--output", f"{scratch}/undisturbed/run")
        _, errors = whole.communicate(timeout=LONGEST_S)
        if whole.returncode:
            print(errors)
            return 1
        seconds = time.monotonic() - began
        expected = outcome(Path(scratch) / "undisturbed" / "run")
        print(f"undisturbed: {seconds:.1f} s, state {expected['state'][0][1][:16]}")
        failures = 0
        for number in range(runs):
            told = one(number, config, Path(scratch) / str(number) / "run", seconds, expected)
            failures += not told.same
            print(f"{number:>3}  {told.killed:<40} {told.resumed:<60} {'same' if told.same else 'DIFFERENT'}", flush=True)
    print(f"{runs - failures} of {runs} ended as the undisturbed run")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
