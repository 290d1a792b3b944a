"""Virtual time against real time: one study run both ways, and how far each stage of each device is off.

    python -m benchmarks.validation [--rounds 3] [--small-only]

Eight devices from 128 kbit/s to 4 Mbit/s up, round trips from 20 to 200 ms, as processes with real MQTT behind
shaping proxies, and as tasks in virtual time; messages of 188 kB (FedAvg) and small ones (GCA). Boards are so slow that
their speed, not this machine's load, is what training lasts. Prints the tables of `docs/links.md`.
"""

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from broker_server.study.store import StudyStore
from sim.config.hardware import OWN, hardwares
from sim.config.study import Study, load_study
from sim.emulation.study import run_study
from sim.screen.progress import Quiet

LINKS = (
    "128kbit/256kbit/200ms", "192kbit/512kbit/150ms", "256kbit/512kbit/100ms", "512kbit/1mbit/80ms",
    "768kbit/2mbit/60ms", "1mbit/2mbit/50ms", "2mbit/4mbit/30ms", "4mbit/8mbit/20ms",
)  # fmt: skip
BOARDS = """
[boards.quick]
note = "for comparing clocks"
training_flops = { value = 8e7, tag = "assumption", note = "slow enough for any machine to keep up" }
[boards.slow]
note = "for comparing clocks"
training_flops = { value = 4e7, tag = "assumption", note = "slow enough for any machine to keep up" }
"""
SHARE, FLOOR_S = 0.03, 0.015
"""A stage agrees within this share of itself or within so many seconds, whichever is more."""
GAP_S = 0.05
"""Devices that finish so far apart finish in the same order either way."""
STAGES = {"fedavg": ("reconstruction", "upload", "wait", "adoption"),
          "gca": ("reconstruction", "upload", "wait", "alignment")}  # fmt: skip

Key = tuple[int, str, str]
"""A round, a device and a stage of it."""


@dataclass(frozen=True)
class Run:
    """What is compared of a run: seconds by stage, when each ended, and the bytes of uploads and broadcasts.

    Aggregation takes no virtual time: `aggregating` says how long each took, and no wait contains it.
    """

    seconds: Mapping[Key, float]
    ended: Mapping[Key, float]
    messages: Mapping[tuple[str, int, str, str], tuple[int, int]]
    aggregating: Mapping[int, float]


def studies(method: str, rounds: int, links: Iterable[str] = LINKS) -> dict[str, Study]:
    """Return the same study in real and in virtual time."""
    links = list(links)
    overrides = {
        "method": method, "devices": len(links), "rounds": rounds, "link": links, "hardware": ["quick", "slow"],
        "training.hidden": [256, 80] if method == "fedavg" else [32], "training.local_epochs": 2,
        "training.recon_epochs": 20, "training.align_epochs": 10, "clustering.algorithm": "kmeans",
        "evaluation.every": "round",
    }  # fmt: skip
    return {
        "real": load_study("demo", {**overrides, "isolation": "process", "clock": "real"}),
        "virtual": load_study("demo", {**overrides, "isolation": "task", "clock": "virtual"}),
    }


def run(study: Study, directory: Path) -> Run:
    """Run a study and return what is compared of it."""
    run_study(study, directory, Quiet())
    with StudyStore.open(directory) as store:
        stages = store.rows("SELECT round, device, stage, seconds, ended_s FROM stages WHERE stage != 'evaluate'")
        sent = store.rows(
            "SELECT device, round, direction, kind, sum(messages), sum(payload_bytes), sum(message_bytes) "
            "FROM transfers WHERE side = 'device' AND kind IN ('upload', 'broadcast') GROUP BY 1, 2, 3, 4"
        )
        rounds = store.rows("SELECT round, published_s - closed_s FROM rounds")
    aggregating = dict(rounds)
    seconds = {
        (round, device, stage): max(0.0, spent - aggregating[round]) if stage == "wait" else spent
        for round, device, stage, spent, _ in stages
    }
    return Run(seconds, {row[:3]: row[4] for row in stages}, {row[:4]: row[4:] for row in sent}, aggregating)


def boards(folder: Path) -> None:
    """Let this process know the boards of the comparison."""
    path = folder / "boards.toml"
    path.write_text(BOARDS)
    os.environ[OWN] = str(path)
    hardwares.cache_clear()


def off(real: Run, virtual: Run) -> dict[Key, float]:
    """Return by how many seconds each stage took longer in virtual time."""
    assert real.seconds.keys() == virtual.seconds.keys()
    return {key: virtual.seconds[key] - seconds for key, seconds in real.seconds.items()}


def too_far(real: Run, virtual: Run) -> list[Key]:
    """Return the stages that do not agree."""
    errors = off(real, virtual)
    return [key for key, error in errors.items() if abs(error) > max(SHARE * real.seconds[key], FLOOR_S)]


def always_too_far(real: Run, virtual: Run) -> list[tuple[str, str]]:
    """Return the devices and stages that agree in no round: one that does not may be this machine's load, all are the
    model's fault."""
    wrong = Counter((device, stage) for _, device, stage in too_far(real, virtual))
    rounds = len({round for round, _, _ in real.seconds})
    return [which for which, times in wrong.items() if times == rounds]


def out_of_order(real: Run, virtual: Run, round: int, stage: str = "upload") -> list[tuple[str, str]]:
    """Return the pairs of devices that finish a round's stage far apart, but in another order in virtual time."""
    ended = sorted((moment, key) for key, moment in real.ended.items() if (key[0], key[2]) == (round, stage))
    return [
        (first[1], second[1])
        for (early, first), (late, second) in combinations(ended, 2)
        if late - early > GAP_S and virtual.ended[first] >= virtual.ended[second]
    ]


def table(method: str, real: Run, virtual: Run) -> str:
    """Return the errors by stage: of each device the median over the rounds, of those the mean and the largest."""
    lines = [
        "| method | stage | seconds, real | mean error | largest error | largest error of one round |",
        "|---|---|---|---|---|---|",
    ]
    errors = off(real, virtual)
    for stage in STAGES[method]:
        keys = [key for key in errors if key[2] == stage]
        took = [real.seconds[key] for key in keys]
        typical = [
            (np.median([errors[key] for key in keys if key[1] == device]),
             np.median([real.seconds[key] for key in keys if key[1] == device]))
            for device in sorted({key[1] for key in keys})
        ]  # fmt: skip
        worst, of = max(typical, key=lambda one: abs(one[0]))
        lines.append(
            f"| {method} | {stage} | {min(took):.3f} to {max(took):.3f} "
            f"| {1e3 * np.mean([error for error, _ in typical]):+.1f} ms | {1e3 * worst:+.1f} ms of {of:.3f} s "
            f"| {1e3 * max(abs(errors[key]) for key in keys):.1f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small-only", action="store_true", help="leave out FedAvg")
    arguments = parser.parse_args()
    for method in ("gca",) if arguments.small_only else ("gca", "fedavg"):
        with tempfile.TemporaryDirectory() as name:
            boards(Path(name))
            found = {
                clock: run(study, Path(name) / clock / "study")
                for clock, study in studies(method, arguments.rounds).items()
            }
        real, virtual = found["real"], found["virtual"]
        print(table(method, real, virtual))
        rounds = range(1, arguments.rounds + 1)
        swapped = [(round, *pair) for round in rounds for pair in out_of_order(real, virtual, round)]
        same = "equal to the byte" if real.messages == virtual.messages else "DIFFERENT"
        print(f"{method}: aggregation took at most {1e3 * max(real.aggregating.values()):.0f} ms of real time; uploads "
              f"and broadcasts {same}; finished in another order: {swapped or 'nobody'}")  # fmt: skip
        for key in too_far(real, virtual):
            print(f"  off: round {key[0]}, {key[1]}, {key[2]}: {real.seconds[key]:.3f} s real, "
                  f"{virtual.seconds[key]:.3f} s virtual")  # fmt: skip
        print(f"  off in all rounds: {always_too_far(real, virtual) or 'nothing'}\n")


if __name__ == "__main__":
    main()
