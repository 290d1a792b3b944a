"""Small studies that are stopped at chosen instants, and what they must end with whatever happens."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_rows import rows

from broker_server.study.checkpoint import load_checkpoint
from sim.config.study import Study, load_study
from sim.emulation.journal import Journal
from sim.screen.progress import Quiet

SMALL = """
dataset = "breast_cancer"
devices = 3
rounds = 5
hardware = "pi-4b"
link = "1mbit/1mbit/20ms"
clock = "virtual"
checkpoint_every = 2
[training]
hidden = [8]
latent_dim = 4
batch_size = 16
recon_epochs = 1
align_epochs = 1
[clustering]
algorithm = "kmeans"
components = 3
initialisations = 1
"""
CALLS = ("opened", "uploaded", "checkpoint", "record", "observe", "wire", "closing", "note")
"""All by which a run reaches the disk, the devices' own checkpoints apart."""
EVALUATIONS = "SELECT round, device, phase, epoch, loss, threshold, accuracy, auroc, average_precision FROM evaluations"
MESSAGES = """SELECT side, round, device, direction, kind, messages, payload_bytes, message_bytes FROM transfers
              WHERE kind IN ('upload', 'broadcast')"""


def small(tmp_path: Path, **changes: Any) -> Study:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return load_study(path, changes)


def outcome(folder: Path) -> dict[str, list[Any]]:
    """What a study must end with, however often it was stopped."""
    return {
        "state": rows(folder, "SELECT completed, state_sha256 FROM runs"),
        "evaluations": sorted(rows(folder, EVALUATIONS)),
        "messages": sorted(rows(folder, MESSAGES)),
        "fates": sorted(rows(folder, "SELECT round, device, fate FROM participants")),
        "rounds": rows(folder, "SELECT round, diagnostics FROM rounds ORDER BY round"),
        "links": sorted(rows(folder, "SELECT DISTINCT round, device, direction FROM wire")),
        "models": [load_checkpoint(path)[0]["parameters"].tobytes() for path in sorted((folder / "models").iterdir())],
        "left": sorted(path.name for path in folder.iterdir() if path.suffix == "" and path.is_dir()),
    }


def at_each_call(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Let `act` happen before each call of the journal, with its number from 0."""
    count = iter(range(10**6))
    for name in CALLS:
        real = getattr(Journal, name)

        def call(self: Journal, *args: Any, real: Callable[..., Any] = real, **kwargs: Any) -> Any:
            act(next(count))
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Journal, name, call)


def snapshot(folder: Path, place: Path) -> Path:
    """Copy a study as a kill would leave it at this instant: what was not handed to the system is not there. Files
    that a thread is about to move to their place stay behind."""
    copy = place / folder.name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".*"))
    return copy


QUIET = Quiet()
