"""The same FedAvg study here, on Flower's simulation engine and on pfl-research, each as a whole process.

    python -m benchmarks.peers [--rounds 10 50] [--repetitions 2] [--environments FOLDER]

Workload: magic, 10 clients of 564 records, per round 10 local epochs of minibatches of 50 with a fresh Adam (1e-3) on
the autoencoder 5-256-64-16-64-256-5, all from one initial model. Here it is the real `gca simulate` with devices as
tasks; the peers' scripts lie in `benchmarks/peers/` and read the same records from a file made beforehand. Final
accuracies are printed, so that one sees that all have done the same work.

Fair to the peers: one thread per process, for eager PyTorch gains nothing from a second on layers so small; Flower
has an actor for each core, pfl-research is run in one process and also in one per core, both as their guides say.
Evaluation is on the same 13,376 records, ours with AUROC and average precision beside the accuracy. Flower's clients
judge the global model once a round, its default; "gca" does the same. pfl-research's judge theirs before and after
training, its default; "gca, judging twice" does the same, and is what pfl-research is measured against.

"whole process" is from start to exit, imports included, of programs whose bytecode is kept, as Python does; "rounds
alone" is each system's own loop. The systems take turns, and the best of each counts. Trust the ratios of one run, on a
machine that does nothing else: we fill its cores, Flower waits much of its time and hardly notices a third party.

The peers are installed, once, from PyPI in the versions that the extra `peers` of pyproject.toml names, each into an
environment of its own: FOLDER/flower and FOLDER/pfl.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from edge_client.model.autoencoder import Architecture, initial_parameters
from edge_client.seeds import SHARED, stream
from sim.config.study import load_study
from sim.data import load, shares
from sim.fleet.compute import cores

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).with_name("peers")
STUDY = "paper/magic"
ONCE, TWICE = "gca", "gca, judging twice"
TARGETS = (("Flower", ONCE, 10, "whole", 8.0), ("Flower", ONCE, 50, "whole", 15.0),
           ("pfl-research", TWICE, 10, "rounds", 6.0))  # fmt: skip
"""System, which of ours, rounds, what is compared, and how many times as fast we mean to be."""
SETTINGS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
            "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One run: seconds of the whole process and of the rounds, the final mean accuracy, and who ran."""

    whole: float
    rounds: float
    accuracy: float
    versions: str


# ---- the workload, for those who cannot load it as we do ------------------------------------------------------------


def write_workload(path: Path) -> None:
    """Write each client's records, the test set and the initial model in torch's layout, W being (outputs, inputs)."""
    study = load_study(STUDY)
    dataset = load(study.dataset, seed=study.seed)
    architecture = Architecture(dataset.input_dim)
    layers = architecture.layers(initial_parameters(architecture, stream(study.seed, "init", 0, SHARED)))
    initial = np.concatenate([part.ravel() for W, b in zip(*layers, strict=True) for part in (W.T, b)])
    clients = {f"client{number}": dataset.train[rows] for number, rows in enumerate(shares(study, dataset))}
    np.savez(path, test=dataset.test, anomalous=dataset.labels != 0, initial=initial, **clients)


def environment(folder: Path, peer: str, distribution: str) -> Path:
    """Return the Python of a peer's environment, made and filled if it is not there."""
    python = folder / peer / "bin" / "python"
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["peers"]
    chosen = [one for one in wanted if one.startswith((distribution, "torch"))]
    if not (folder / peer / "complete").exists():
        print(f"installing {', '.join(chosen)} into {folder / peer} ...", flush=True)
        venv.create(folder / peer, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *chosen], check=True)
        (folder / peer / "complete").touch()
    return python


# ---- the systems ----------------------------------------------------------------------------------------------------


def ours(evaluations: str, rounds: int) -> Measured:
    """Run the real command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            Path(sys.executable).with_name("gca"), "simulate", STUDY, "--method", "fedavg", "--isolation", "task",
            "--rounds", str(rounds), "--set", f"evaluation.every={evaluations}", "--set", "training.optimizer=reset",
            "--output", Path(folder, "study"), "--json",
        ]  # fmt: skip
        whole, (output,) = timed([command], {})
    told = json.loads(output)
    return Measured(whole, told["seconds"]["clock"], told["final_accuracy"], "this checkout")


def peer(python: Path, script: str, workload: Path, workers: int = 1) -> Callable[[int], Measured]:
    """Return how to run a peer's script; with several workers as pfl-research's guide to distributed runs says."""

    def run(rounds: int) -> Measured:
        command = [python, SCRIPTS / script, workload, str(rounds)]
        addresses = ",".join(f"localhost:{port}" for port in range(8100, 8100 + workers))
        whole, outputs = timed([command] * workers, {"PFL_WORKER_ADDRESSES": addresses} if workers > 1 else {})
        told = json.loads(outputs[0].splitlines()[-1])
        return Measured(whole, told["rounds_s"], told["accuracy"], told["versions"])

    return run


def timed(commands: list[list[str | Path]], settings: dict[str, str]) -> tuple[float, list[str]]:
    """Run processes beside each other; return the seconds until the last one ended, and what each printed."""
    with ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        complaints = files.enter_context(tempfile.TemporaryFile("w+"))
        began = time.perf_counter()
        processes = []
        for rank, (command, output) in enumerate(zip(commands, outputs, strict=True)):
            variables = os.environ | SETTINGS | settings | {"PFL_WORKER_RANK": str(rank)}
            variables.pop("PYTHONDONTWRITEBYTECODE", None)
            processes.append(subprocess.Popen(command, env=variables, stdout=output, stderr=complaints))
        codes = [process.wait() for process in processes]
        seconds = time.perf_counter() - began
        for file in (*outputs, complaints):
            file.seek(0)
        if any(codes):
            sys.exit(f"{commands[0][0]} failed:\n{complaints.read()[-4000:]}")
        return seconds, [output.read() for output in outputs]


# ---- the comparison -------------------------------------------------------------------------------------------------


def compare(systems: dict[str, Callable[[int], Measured]], rounds: int, repetitions: int) -> dict[str, Measured]:
    """Let the systems take turns, print what each needed, and return the best of each."""
    runs: dict[str, list[Measured]] = {name: [] for name in systems}
    for _ in range(repetitions):
        for name, run in systems.items():
            runs[name].append(one := run(rounds))
            print(f"{rounds} rounds, {name}: {one.whole:.2f} s, rounds {one.rounds:.2f} s", flush=True)
    best = {
        name: Measured(min(one.whole for one in these), min(one.rounds for one in these), these[-1].accuracy,
                       these[-1].versions)
        for name, these in runs.items()
    }  # fmt: skip
    print(f"\n{rounds} rounds, best of {repetitions}")
    print(f"{'':<26}{'whole process':>15}{'rounds alone':>15}{'accuracy':>10}")
    for name, one in best.items():
        ratios = (one.whole / best[ONCE].whole, one.rounds / best[ONCE].rounds)
        print(
            f"{name:<26}{one.whole:7.2f} s {ratios[0]:4.1f} x{one.rounds:7.2f} s {ratios[1]:4.1f} x"
            f"{one.accuracy:10.3f}   {one.versions}",
            flush=True,
        )
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "gca" / "peers")
    chosen = parser.parse_args()
    flower = environment(chosen.environments, "flower", "flwr")
    pfl = environment(chosen.environments, "pfl", "pfl")
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder, "workload.npz")
        write_workload(workload)
        systems = {
            ONCE: partial(ours, "round"),
            TWICE: partial(ours, "phase"),
            "Flower": peer(flower, "flower_run.py", workload),
            "pfl-research": peer(pfl, "pfl_run.py", workload),
            f"pfl-research, {cores()} workers": peer(pfl, "pfl_run.py", workload, workers=cores()),
        }
        found = {rounds: compare(systems, rounds, chosen.repetitions) for rounds in chosen.rounds}
    print()
    for name, ours_as, rounds, what, target in TARGETS:
        if rounds in found:
            ratio = getattr(found[rounds][name], what) / getattr(found[rounds][ours_as], what)
            verdict = "met" if ratio >= target else "NOT met"
            print(f"{name}, {rounds} rounds, {what}: {ratio:.1f} times the seconds of {ours_as}; "
                  f"at least {target:g}: {verdict}")  # fmt: skip


if __name__ == "__main__":
    main()
