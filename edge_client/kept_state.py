"""`gca device --state`: the folder in which a device keeps what it goes on from when its process or machine dies.

Two files lie there for each run and device, for its user's eyes only: the state after its last round (`checkpoint.py`),
and the secret that its private random streams derive from, which has to be the same after a stop. All other random
streams derive from the seed that the server tells. A third is locked by the process that uses them. All are deleted
when the run is complete.
"""

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from edge_client.atomic import forget_unfinished, write_atomically
from edge_client.checkpoint import Checkpoint, load, save
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.protocol.lives import life_in
from edge_client.protocol.messages import Welcome

SECRET_BYTES = 32
PRIVATE = 0o600


@dataclass(frozen=True)
class KeptState:
    """One device's place in its folder; `kept` is what was found there, `secret` its private one. It is held until it
    is closed or its process ends, however that does."""

    path: Path
    run: str
    secret: bytes
    kept: Checkpoint | None
    lock: IO[bytes] = field(repr=False)

    @property
    def unsure_of(self) -> int:
        """The round in which the process before this one was stopped; 0 if it kept nothing, so has begun nothing."""
        return self.kept.round + 1 if self.kept else 0

    def resume(self, welcome: Welcome) -> Checkpoint | None:
        """Return what was kept; raises `ConfigError` if that is of another run than the server's."""
        if self.kept is None:
            return None
        ours, theirs = life_in(self.kept.run, self.run), life_in(welcome.run, self.run)
        if ours is None or theirs is None or ours.incarnation != theirs.incarnation:
            raise ConfigError(
                f"{self.path}: is of {self.kept.run}, the server runs {welcome.run}: another run of that name; delete "
                "it, or give another folder as --state"
            )
        return self.kept

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a state in place of an earlier one; raises `EnvironmentFault` when the disk refuses."""
        save(self.path, checkpoint, PRIVATE)

    def drop(self) -> None:
        """Delete what was kept: the run is complete. Raises `EnvironmentFault` when the disk refuses."""
        for path in (self.path, _secret_place(self.path), _lock_place(self.path)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise EnvironmentFault(f"{path}: {error.strerror}; the run is complete, so delete it by hand") from None
        self.close()

    def close(self) -> None:
        """Let another process have it."""
        self.lock.close()


def kept_state(folder: Path, run: str, device: str) -> KeptState:
    """Open a device's place in a folder, which is made if need be.

    Raises `EnvironmentFault` for a folder that cannot be written, for a state that is damaged or another's, and for one
    that another process uses.
    """
    path = folder / f"{run}.{device}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock_place(path).open("ab")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for one in (path, _secret_place(path)):
            forget_unfinished(one)
        found = path.exists()
    except BlockingIOError:
        raise EnvironmentFault(f"{path}: another process of {device} uses it; stop that one first") from None
    except OSError as error:
        raise EnvironmentFault(f"{folder}: {error.strerror}; give a folder that can be written as --state") from None
    kept = load(path) if found else None
    if kept is not None and kept.device != device:
        raise EnvironmentFault(f"{path}: is of device {kept.device}; put back what was there, or delete it")
    return KeptState(path, run, _secret(path, kept is not None), kept, lock)


def _secret_place(path: Path) -> Path:
    return path.with_suffix(".secret")


def _lock_place(path: Path) -> Path:
    return path.with_suffix(".lock")


def _secret(path: Path, goes_on: bool) -> bytes:
    """Return the device's secret; drawn anew where nothing was kept beside it, so that it serves one run alone."""
    place = _secret_place(path)
    if not goes_on:
        secret = os.urandom(SECRET_BYTES)
        write_atomically(place, secret, "secret", PRIVATE)
        return secret
    try:
        secret = place.read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"{place}: {error.strerror}; without it {path.name} is no use: delete both") from None
    if len(secret) != SECRET_BYTES:
        raise EnvironmentFault(f"{place}: is damaged; without it {path.name} is no use: delete both")
    return secret
