"""`gca device --state`: the folder in which a device keeps what it goes on from when its process or machine dies.

Two files lie there for each run and device, for its user's eyes only: the state after its last round (`checkpoint.py`),
and the secret that its private random streams derive from, which has to be the same after a stop, with a digest of the
records that the state is made from. All other random streams derive from the seed that the server tells. A third is
locked by the process that uses them. All are deleted when the run is complete.

A state that does not fit, being of another run of that name or of other records, is no reason for a board on a shelf to
stay down. It is set aside, the last few of a device are kept, and the device begins anew: it says so, and so does the
server's study.
"""

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from edge_client.atomic import forget_unfinished, write_atomically
from edge_client.checkpoint import Checkpoint, load, save
from edge_client.data.records import Records
from edge_client.data.scaler import Scaler
from edge_client.errors import EnvironmentFault
from edge_client.protocol.lives import in_any_life
from edge_client.protocol.messages import Welcome

SECRET_BYTES = 32
PRIVATE = 0o600
ASIDE = "~"
"""Stands before the number of a state that was set aside. No name of a run or device may have it."""
LAST_FEW = 3
"""States of a device that stay set aside. Whoever wants one back wants the latest, or one of those before it if the
board has begun anew again meanwhile; each is three times its model, and a board's card has to last for years."""
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a state is made from: the device's training records, as standardised, and the scaler that it was given."""

    samples: Digest
    count: Annotated[int, Meta(ge=1)]
    scaler: Digest | None = None

    def difference(self, now: "Origin") -> str:
        """Say in what way `now` is another origin; nothing if it is the same."""
        if self.samples == now.samples:
            return ""
        if self.scaler != now.scaler:
            return "its records were standardised otherwise, with another --scaler or with none"
        return f"it was made from other records, {self.count} of them where there are {now.count} now"


def origin(records: Records, scaler: Scaler | None = None) -> Origin:
    """Return the origin of states that are made from these records."""
    samples = sha256(f"{records.samples.shape}".encode() + records.samples.tobytes()).digest()
    told = None if scaler is None else sha256(msgspec.msgpack.encode(scaler)).digest()
    return Origin(samples, len(records.samples), told)


class _Private(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file beside the state holds."""

    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    origin: Origin


@dataclass
class KeptState:
    """One device's place in its folder. `kept` is what was found there and fits, `secret` its private one; `aside` says
    why what was found does not fit, and where it is now. It is held until it is closed or its process ends, however
    that does. `say` takes one line for a person."""

    path: Path
    run: str
    secret: bytes = field(repr=False)
    kept: Checkpoint | None
    aside: str
    lock: IO[bytes] = field(repr=False)
    say: Callable[[str], None] = field(repr=False)

    @property
    def unsure_of(self) -> int | None:
        """The round in which the process before this one was stopped; None if nothing of it is gone on from."""
        return self.kept.round + 1 if self.kept else None

    def resume(self, welcome: Welcome) -> Checkpoint | None:
        """Return what was kept of the server's run; what is of another run of that name is set aside. The secret stays
        with both: what derives from it is of one run alone (`Secrets.of_run`)."""
        if self.kept is not None and in_any_life(self.kept.run, self.run) != in_any_life(welcome.run, self.run):
            why = f"is of {self.kept.run}, and the server runs {welcome.run}, another run of that name"
            self.aside, self.kept = _set_aside(self.path, why, self.say), None
        return self.kept

    def why_anew(self) -> str:
        """Say why the device begins anew though something was kept; nothing if nothing was, or if it does not."""
        return self.aside

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


def kept_state(folder: Path, run: str, device: str, made_from: Origin, say: Callable[[str], None]) -> KeptState:
    """Open a device's place in a folder, which is made if need be; set aside what is made from other records.

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
    if kept is not None:
        private = _read_private(path)
        if not (why := private.origin.difference(made_from)):
            return KeptState(path, run, private.secret, kept, "", lock, say)
    aside = _set_aside(path, why, say) if kept is not None else ""
    # Drawn anew: the same noise on codes of other records would give both away, and nothing is kept that needs it.
    private = _Private(os.urandom(SECRET_BYTES), made_from)
    write_atomically(_secret_place(path), msgspec.msgpack.encode(private), "secret", PRIVATE)
    return KeptState(path, run, private.secret, None, aside, lock, say)


def _set_aside(path: Path, why: str, say: Callable[[str], None]) -> str:
    """Move a state out of the way, with a copy of what belongs to it, under the highest number so far; say so, and
    return what was said."""
    secret, numbers = _secret_place(path), _numbers_aside(path)
    number = max(numbers, default=0) + 1
    aside = _aside(path, number)
    try:
        write_atomically(_aside(secret, number), secret.read_bytes(), "secret", PRIVATE)
        path.replace(aside)
        for old in (old for old in numbers if old <= number - LAST_FEW):
            _aside(secret, old).unlink(missing_ok=True)
            _aside(path, old).unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{path}: {why}; it cannot be set aside: {error.strerror}; delete it by hand") from None
    told = f"{path.name}: {why}; it is set aside as {aside.name}, and this device begins anew"
    say(told)
    return told


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}{ASIDE}{number}")


def _numbers_aside(path: Path) -> list[int]:
    """Return under which numbers states of this place were set aside."""
    found = (one.name.rpartition(ASIDE)[2] for one in path.parent.glob(f"{path.name}{ASIDE}*"))
    return [int(number) for number in found if number.isdecimal()]


def _secret_place(path: Path) -> Path:
    return path.with_suffix(".secret")


def _lock_place(path: Path) -> Path:
    return path.with_suffix(".lock")


def _read_private(path: Path) -> _Private:
    """Read what lies beside a state."""
    place = _secret_place(path)
    try:
        return msgspec.msgpack.decode(place.read_bytes(), type=_Private)
    except OSError as error:
        raise EnvironmentFault(f"{place}: {error.strerror}; without it {path.name} is no use: delete both") from None
    except msgspec.DecodeError:
        raise EnvironmentFault(f"{place}: is damaged; without it {path.name} is no use: delete both") from None
