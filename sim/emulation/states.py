"""The states that devices of a running study keep: `states/ROUND/DEVICE.npz`, for as long as they may be needed."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from edge_client.checkpoint import Checkpoint, load, save
from edge_client.errors import EnvironmentFault

FOLDER = "states"
KEPT = 2
"""Rounds of which all devices' states are kept: should the last be damaged, there is the one before."""


def state_path(directory: Path, round: int, device: str) -> Path:
    """Return where a study in `directory` keeps a device's state after a round."""
    return directory / FOLDER / f"{round:05d}" / f"{device}.npz"


def save_state(directory: Path, kept: Checkpoint) -> None:
    """Write a device's state; raises `EnvironmentFault` when the disk refuses."""
    path = state_path(directory, kept.round, kept.device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{path.parent}: {error.strerror}; the checkpoint could not be written") from None
    save(path, kept)


def load_state(directory: Path, round: int, device: str) -> Checkpoint:
    """Return a device's state after a round; raises `EnvironmentFault` if it is not there, or not whole."""
    kept = load(path := state_path(directory, round, device))
    if (kept.round, kept.device) != (round, device):
        raise EnvironmentFault(f"{path}: is of {kept.device} after round {kept.round}; put back what was there")
    return kept


def kept_rounds(directory: Path) -> list[int]:
    """Return the rounds of which there are states, the last first."""
    folder = directory / FOLDER
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(entry.name) for entry in found if entry.name.isdigit()), reverse=True)


def drop_states(directory: Path) -> None:
    """Delete all states: the study has ended, and its models are kept elsewhere."""
    shutil.rmtree(directory / FOLDER, ignore_errors=True)


class Retention:
    """Deletes the states that nobody will go on from, as the devices report their rounds."""

    def __init__(self, directory: Path, devices: Sequence[str]) -> None:
        self._directory = directory
        self._reported = dict.fromkeys(devices, 0)
        self._over = 0

    def reported(self, device: str, round: int) -> None:
        """Take in that a device has come to the end of a round; its state was written before."""
        self._reported[device] = round
        over = min(self._reported.values())
        if over > self._over:
            self._over = over
            self._delete()

    def _delete(self) -> None:
        """Delete what is older than the last `KEPT` rounds of which all devices' states are there."""
        whole = 0
        for round in kept_rounds(self._directory):
            if whole == KEPT:
                shutil.rmtree(self._directory / FOLDER / f"{round:05d}", ignore_errors=True)
            elif round <= self._over:
                whole += all(state_path(self._directory, round, device).exists() for device in self._reported)
