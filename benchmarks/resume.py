"""Real runs that lose a process: each must complete, or go on to what the undisturbed run ended with.

    python -m benchmarks.resume [RUNS]

One study is run undisturbed, then RUNS times (default 20) over real MQTT in processes, and each time something is
killed at an instant drawn from a seed: the program (which is the server), the network (with the broker), one device, or
all at once; every third time the resumed run is killed as well. The exit code is 1 if any ended otherwise.
"""

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROUNDS = 30
STUDY = f"""
dataset = "breast_cancer"
devices = 4
rounds = {ROUNDS}
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


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a study."""
    connection = sqlite3.connect(folder / "study.sqlite")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def outcome(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what a study must end with, however often it was stopped."""
    return {
        "state": rows(folder, "SELECT completed, state_sha256 FROM runs"),
        "evaluations": sorted(rows(folder, EVALUATIONS)),
        "uploads": sorted(rows(folder, UPLOADS)),
        "bytes": sorted(rows(folder, BYTES)),
    }


def start(*arguments: str) -> "subprocess.Popen[str]":
    """Start `gca simulate` as the head of a process group."""
    command = [sys.executable, "-m", "sim.cli", "simulate", *arguments, "--quiet"]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


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


def one(number: int, config: Path, folder: Path) -> tuple[str, str]:
    """Run and kill; return what was killed and where the study went on. It has ended when this returns."""
    chance, victim = random.Random(number), VICTIMS[number % len(VICTIMS)]
    rounds = sorted(chance.sample(range(ROUNDS - 3), 2 if number % 3 == 2 else 1))
    killed = []
    for life, round in enumerate(rounds):
        run = start("--resume", str(folder)) if life else start(str(config), "--output", str(folder))
        await_round(folder, round, run)
        time.sleep(chance.uniform(0.0, 0.3))
        killed.append(f"{kill(run, victim, chance)} after round {round}")
    done = start("--resume", str(folder))
    _, errors = done.communicate(timeout=LONGEST_S)
    if done.returncode:
        print(errors)
    notes = rows(folder, "SELECT detail FROM events WHERE detail LIKE 'resumed%' ORDER BY rowid")
    return ", ".join(killed), "; ".join(note.removeprefix("resumed: the study ") for (note,) in notes)


def await_round(folder: Path, round: int, run: "subprocess.Popen[str]") -> None:
    """Wait until a round was broadcast; for round 0 until there is a study."""
    place = folder / "rounds" / f"{round:05d}.safetensors" if round else folder / "study.toml"
    until = time.monotonic() + LONGEST_S
    while not place.exists() and run.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=int, default=20)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "study.toml"
        config.write_text(STUDY)
        whole = Path(scratch) / "undisturbed" / "run"
        _, errors = start(str(config), "--output", str(whole)).communicate(timeout=LONGEST_S)
        if not (whole / "study.sqlite").exists():
            print(errors)
            return 1
        expected, failures = outcome(whole), 0
        for number in range(runs):
            folder = Path(scratch) / str(number) / "run"
            killed, resumed = one(number, config, folder)
            found = outcome(folder)
            wrong = [part for part in expected if found[part] != expected[part]]
            failures += bool(wrong)
            print(f"{number:>3}  {killed}: {resumed}: {'other ' + ', '.join(wrong) if wrong else 'same'}", flush=True)
    print(f"{runs - failures} of {runs} ended as the undisturbed run: state, evaluations, uploads, bytes")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
