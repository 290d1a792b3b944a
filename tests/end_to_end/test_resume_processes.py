"""Real processes over real MQTT that are killed: what goes on ends as the run that nobody killed."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end_tools import HANGS_S, descendants, gca, wait_for
from resume.stopped import outcome

from sim.config.study import load_study
from sim.emulation.study import run_study
from sim.screen.progress import Quiet

ROUNDS = 12
STUDY = f"""
dataset = "breast_cancer"
devices = 3
rounds = {ROUNDS}
link = "1mbit/1mbit/60ms"
[training]
hidden = [8]
latent_dim = 4
[clustering]
algorithm = "kmeans"
components = 3
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def expected(config: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """What the study ends with; the run's name is part of every message, so all are called the same."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run_study(load_study(config), folder, Quiet())
    return outcome(folder)


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "sim.cli", "simulate", *arguments, "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def broadcasts(folder: Path) -> int:
    return len(list((folder / "rounds").glob("*.safetensors")))


def test_everything_is_killed_twice_at_drawn_instants(config: Path, expected: dict[str, list[object]],
                                                      tmp_path: Path) -> None:  # fmt: skip
    folder, chance = tmp_path / "run", random.Random(8)
    first, second = chance.randrange(2, 5), chance.randrange(6, 10)
    for instant, arguments in ((first, (str(config), "--output", str(folder))), (second, ("--resume", str(folder)))):
        run = start(*arguments)
        wait_for(lambda instant=instant: broadcasts(folder) >= instant, 60)  # type: ignore[misc]
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=HANGS_S)
    done = gca("simulate", "--resume", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert outcome(folder) == expected


def test_one_device_is_killed(config: Path, expected: dict[str, list[object]], tmp_path: Path) -> None:
    """The run ends at once and says who died; then it goes on. `benchmarks.resume` kills the network as well."""
    folder = tmp_path / "run"
    run = start(str(config), "--output", str(folder))
    wait_for(lambda: broadcasts(folder) >= 4, 60)
    os.kill(descendants(run.pid, "dev-0002")[0], signal.SIGKILL)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 1 and "dev-0002 died" in errors
    done = gca("simulate", "--resume", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert outcome(folder) == expected
