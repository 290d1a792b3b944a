"""The training of a study on disk, to be timed again on other links without being computed again.

One SQLite file holds, of each device and round, what it uploaded and how its model was judged; of each round, whose
uploads were accepted and what they gave; of each device, its final model. It is made by the first study of its kind,
and whoever wants the same at the same time waits: training twice would take longer. Half a recording is none.
"""

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from broker_server.methods.base import Aggregate
from edge_client.errors import EnvironmentFault
from edge_client.model.trainer import ModelState
from edge_client.protocol.codec import Arrays, decode_arrays, encode_arrays
from edge_client.protocol.messages import Evaluation
from sim.config.devices import in_short
from sim.config.study import Participation, Study, dump
from sim.fleet.program import program

FOLDER = ".recordings"
"""Beside the folders of the studies; hidden, as it is none of them."""
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE turns (round INTEGER, device TEXT, before BLOB, after BLOB, upload BLOB, evaluations BLOB,
                    state_sha256 TEXT, PRIMARY KEY (round, device));
CREATE TABLE rounds (round INTEGER PRIMARY KEY, accepted TEXT, broadcast BLOB, packed BLOB, diagnostics TEXT,
                     remarks TEXT);
CREATE TABLE models (device TEXT PRIMARY KEY, past BLOB, epochs INTEGER, parameters BLOB);
"""


_evaluations = msgspec.msgpack.Decoder(tuple[Evaluation, ...]).decode


@dataclass(frozen=True)
class Turn:
    """A device's round. `before` and `after` say what its model had gone through (`sim.fleet.replay`); `upload` is None
    where it made none."""

    round: int
    device: str
    before: bytes
    after: bytes
    upload: Arrays | None
    evaluations: tuple[Evaluation, ...]
    state_sha256: str


def identity(study: Study, records: str = "") -> str:
    """Return a digest of all that a training depends on: of the study what does not merely time it, the program, and a
    digest of the devices' `records`. That is left out where studies of one program are compared, which makes the same
    records for the same study."""
    usual, who = Participation(), study.participation
    untimed = msgspec.structs.replace(
        study, link="none", hardware="host", clock="virtual", isolation=None, compute="replay", checkpoint_every=None,
        participation=msgspec.structs.replace(
            who, deadline=usual.deadline, deadline_limit=usual.deadline_limit, grace=usual.grace,
            wait_seconds=usual.wait_seconds, quorum=usual.quorum, minimum_devices=usual.minimum_devices,
        ),
    )  # fmt: skip
    return blake2b(f"{dump(untimed)}\n{program()}\n{records}\n{TABLES}".encode(), digest_size=8).hexdigest()


class Recording:
    """An open recording: complete, and there to be read, or being made. For any thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection, is_complete: bool) -> None:
        self.path, self.is_complete = path, is_complete
        self._connection = connection
        self._lock = threading.Lock()

    # ---- making it ----------------------------------------------------------------------------------------------

    def keep_turn(self, turn: Turn) -> None:
        """Keep a device's round; a later report of the same round changes nothing."""
        upload = None if turn.upload is None else encode_arrays(turn.upload)
        judged = msgspec.msgpack.encode(turn.evaluations)  # which keeps NaN
        row = (turn.round, turn.device, turn.before, turn.after, upload, judged, turn.state_sha256)
        self._write("INSERT OR IGNORE INTO turns VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def keep_round(self, round: int, accepted: list[str], given: Aggregate) -> None:
        """Keep whose uploads were accepted in a round, and what they gave."""
        packed = None if given.packed is None else encode_arrays(given.packed)
        said = json.dumps(dict(given.diagnostics)), json.dumps(given.remarks)
        row = (round, json.dumps(accepted), encode_arrays(given.broadcast), packed, *said)
        self._write("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", row)

    def keep_model(self, device: str, past: bytes, state: ModelState) -> None:
        """Keep a device's final model, and what it had gone through."""
        body = encode_arrays({"parameters": state.parameters})
        self._write("INSERT INTO models VALUES (?, ?, ?, ?)", (device, past, state.epochs, body))

    def keep_fact(self, name: str, value: str) -> None:
        """Keep something about the whole."""
        self._write("INSERT INTO facts VALUES (?, ?)", (name, value))

    def complete(self) -> None:
        """All is in it: let others read it."""
        if not self.is_complete:
            with self._lock, _faults(self.path):
                self._connection.commit()
                beside(self.path).rename(self.path)
            self.is_complete = True

    # ---- reading it ---------------------------------------------------------------------------------------------

    def turn(self, round: int, device: str) -> Turn | None:
        """Return a device's round; None if there is none of it."""
        row = self._row("SELECT * FROM turns WHERE round = ? AND device = ?", round, device)
        if row is None:
            return None
        _, _, before, after, upload, judged, state_sha256 = row
        arrays = None if upload is None else decode_arrays(upload)
        return Turn(round, device, before, after, arrays, _evaluations(judged), state_sha256)

    def round(self, round: int) -> tuple[list[str], Aggregate] | None:
        """Return whose uploads were accepted in a round and what they gave; None if there was no such round."""
        row = self._row("SELECT * FROM rounds WHERE round = ?", round)
        if row is None:
            return None
        _, accepted, broadcast, packed, diagnostics, remarks = row
        given = Aggregate(decode_arrays(broadcast), json.loads(diagnostics), tuple(json.loads(remarks)),
                          None if packed is None else decode_arrays(packed))  # fmt: skip
        return json.loads(accepted), given

    def model(self, device: str, past: bytes) -> ModelState | None:
        """Return a device's final parameters; how its optimiser stood is not kept. None if it has none of this past."""
        row = self._row("SELECT epochs, parameters FROM models WHERE device = ? AND past = ?", device, past)
        if row is None:
            return None
        parameters = decode_arrays(row[1])["parameters"]
        return ModelState(parameters, np.empty(0, np.float32), np.empty(0, np.float32), epochs=row[0])

    def fact(self, name: str) -> str | None:
        """Return something about the whole; None if nobody kept it."""
        row = self._row("SELECT value FROM facts WHERE name = ?", name)
        return None if row is None else str(row[0])

    # ---- its file -----------------------------------------------------------------------------------------------

    def _write(self, statement: str, row: tuple[Any, ...]) -> None:
        with self._lock, _faults(self.path):
            self._connection.execute(statement, row)

    def _row(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        with self._lock, _faults(self.path):
            found: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
            return found


@contextmanager
def recording(study: Study, records: str, directory: Path, tell: Callable[[str], None]) -> Iterator[Recording]:
    """Open the recording of a study's training on records of this digest, which lies beside the study's own folder, or
    begin to make it.

    What is made is there for others once it was told to be complete. Raises `EnvironmentFault` if the disk refuses.
    """
    name = f"{study.dataset}-{study.method}-{study.seed}-{identity(study, records)}.sqlite"
    path = directory.parent / FOLDER / name
    if not path.exists():
        with _held(path, tell):
            if not path.exists():  # also after waiting for another
                tell(f"training is recorded in {path}, to be timed again on other links")
                with _made(path, study, directory) as made:
                    yield made
                return
    with closing(_connected(path, path)) as connection:
        read = Recording(path, connection, is_complete=True)
        tell(f"training is taken from {path}, recorded by {read.fact('study')} on link {read.fact('link')}")
        yield read


@contextmanager
def _made(path: Path, study: Study, directory: Path) -> Iterator[Recording]:
    """Make a recording beside its place, in one transaction: half of it is of no use to anybody."""
    with closing(_connected(beside(path), path, writable=True)) as connection:
        with _faults(path):
            os.truncate(beside(path), 0)  # what somebody else left unfinished
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute("PRAGMA synchronous=OFF")
            connection.executescript(TABLES)
        made = Recording(path, connection, is_complete=False)
        made.keep_fact("study", directory.name)
        made.keep_fact("link", in_short(study.link))
        yield made


@contextmanager
def _held(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the right to make a recording for the length of the block; wait for whoever has it."""
    with _faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(beside(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waits for the recording that another study makes of the same training")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if path.exists():  # then this one is of no use any more
            beside(path).unlink(missing_ok=True)
        os.close(handle)


def beside(path: Path) -> Path:
    """Return where a recording is made."""
    return path.with_name(path.name + ".unfinished")


def _connected(file: Path, path: Path, *, writable: bool = False) -> sqlite3.Connection:
    with _faults(path):
        mode = "rw" if writable else "ro"
        return sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", uri=True, check_same_thread=False)


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Turn what SQLite and the disk report into one line for a person."""
    try:
        yield
    except (OSError, sqlite3.DatabaseError) as error:
        raise EnvironmentFault(
            f"{path}: {error}; check that the disk has room and may be written, or delete the file: it is made anew"
        ) from None
