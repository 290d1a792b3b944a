"""The study store: one SQLite file in WAL mode, one transaction per fact, readable while a run writes it.

A process killed at any instant leaves whole rounds behind: SQLite rolls back what was not committed. A finished
round is also forced to the disk, and all that was written before it with it; the many small facts between rounds
are not forced one by one, because the server waits meanwhile.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker_server.plan import RunPlan
from broker_server.study.records import Amendment, AttackRecord, Closing, Misconduct, Outcome, RoundRecord
from broker_server.study.schema import ATTACKS, OF_ROUNDS, TABLES, VERSION
from edge_client.errors import EnvironmentFault
from edge_client.protocol.messages import Tally, Telemetry

FILE = "study.sqlite"
Wire = tuple[int, int, str, str, int, int, int, int]
"""A row of the table `wire`."""


class StudyStore:
    """An open study. Use `create` or `open`, and close it (or use it as a context manager)."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.group = 1
        """Facts that are committed together; a fleet makes so many that each of its own would cost more than the fact.
        What forces the disk commits at once."""
        self._connection = connection
        self._uncommitted = 0

    @classmethod
    def create(cls, directory: Path) -> Self:
        """Make the store of a new study; raises `EnvironmentFault` when the folder cannot hold one."""
        path = directory / FILE
        with _faults(path), _connected(path) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(f"BEGIN; PRAGMA user_version={VERSION}; {TABLES} COMMIT;")
            return cls(path, connection)

    @classmethod
    def open(cls, directory: Path, *, writable: bool = False) -> Self:
        """Open an existing study, for reading unless `writable`; raises `EnvironmentFault` when it is none or cannot
        be opened so."""
        path = directory / FILE
        if not path.is_file():
            raise EnvironmentFault(f"{directory}: holds no study ({FILE} is missing); give the folder of a study")
        uri = f"{path.absolute().as_uri()}?mode=rw" if writable else _read_only(path)
        with _faults(path), _connected(uri, uri=True) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise EnvironmentFault(f"{path}: is of version {version}, this program reads version {VERSION}")
            return cls(path, connection)

    @staticmethod
    def is_made(directory: Path) -> bool:
        """Whether a store is there; one whose making was cut short holds no table yet."""
        path = directory / FILE
        if not path.exists():
            return False
        with _faults(path), closing(sqlite3.connect(_read_only(path), uri=True)) as connection:
            return bool(connection.execute("SELECT 1 FROM sqlite_master").fetchone())

    def close(self) -> None:
        """Close, with all that was written down."""
        with _faults(self.path):
            if self._uncommitted:
                self._commit()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- writing ------------------------------------------------------------------------------------------------

    def begin_run(self, plan: RunPlan, devices: int, dataset: str) -> int:
        """Note that a run begins; return its number."""
        with self._transaction() as write:
            row = (plan.name, dataset, plan.method, plan.seed, devices, plan.rounds)
            number = write.execute(
                "INSERT INTO runs (name, dataset, method, seed, devices, rounds) VALUES (?, ?, ?, ?, ?, ?)", row
            ).lastrowid
        assert number is not None
        return number

    def record_round(self, run: int, record: RoundRecord) -> None:
        """Write a finished round down, all of it or nothing."""
        fates = [
            (run, record.round, device, fate)
            for fate in ("accepted", "late", "rejected", "missing")
            for device in getattr(record, fate)
        ]
        times = (record.opened_s, record.closed_s, record.published_s, record.deadline_s)
        with self._transaction(durable=True) as write:
            row = (run, record.round, *times, json.dumps(record.diagnostics))
            write.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            write.executemany("INSERT INTO participants VALUES (?, ?, ?, ?)", fates)
            self._server_side(write, run, record.round, record.tallies, record.counts)
            write.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
                              _misconduct(run, record.round, record.misconduct))  # fmt: skip

    def amend_round(self, run: int, amendment: Amendment) -> None:
        """Book what came for a round after its record, and correct the fate of an upload that was called missing."""
        a = amendment
        with self._transaction() as write:
            if a.late:
                write.execute(
                    "UPDATE participants SET fate = 'late' WHERE run = ? AND round = ? AND device = ? "
                    "AND fate = 'missing'",
                    (run, a.round, a.device),
                )
            self._server_side(write, run, a.round, {a.device: (a.tally,)}, a.counts)

    def record_closing(self, run: int, closing: Closing) -> None:
        """Write down what came after the last round."""
        with self._transaction() as write:
            self._server_side(write, run, closing.round, closing.tallies, closing.counts)
            write.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
                              _misconduct(run, closing.round, closing.misconduct))  # fmt: skip

    def record_telemetry(self, run: int, told: Telemetry, now: float | None = None) -> None:
        """Write down what a device reported, at `now` on the run's clock (None: not known). A round that went amiss for
        it, or on which it has a remark, is an event "reported_" + how.

        The same round may be amiss for the server too, which counts it under a kind of its own.
        """
        key = (run, told.round, told.device)
        with self._transaction() as write:
            write.executemany("INSERT INTO transfers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                              _transfers(run, "device", told.round, told.device, told.tallies))  # fmt: skip
            write.executemany(
                "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*key, e.phase, e.epoch, e.loss, e.threshold, e.accuracy, e.auroc, e.average_precision)
                 for e in told.evaluations],
            )  # fmt: skip
            write.executemany("INSERT INTO stages VALUES (?, ?, ?, ?, ?, ?, ?)", _stages(key, told, now))
            amiss = told.outcome not in ("completed", "idle")
            if amiss or (told.outcome == "completed" and told.detail):
                write.execute(
                    "INSERT INTO events VALUES (?, ?, ?, ?, 1, ?)", (*key, f"reported_{told.outcome}", told.detail)
                )

    def record_wire(self, run: int, round: int, device: str, direction: str, stream_bytes: int, wire_bytes: int,
                    segments: int, ack_bytes: int) -> None:  # fmt: skip
        """Write down what crossed a device's link in one direction."""
        self.record_wires([(run, round, device, direction, stream_bytes, wire_bytes, segments, ack_bytes)])

    def record_wires(self, rows: list[Wire]) -> None:
        """Write down what crossed links, each in one direction."""
        with self._transaction() as write:
            write.executemany("INSERT INTO wire VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def note(self, run: int, round: int, device: str | None, kind: str, detail: str, count: int = 1) -> None:
        """Write down an event."""
        with self._transaction() as write:
            write.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (run, round, device, kind, count, detail))

    def begin_life(self, run: int, name: str) -> None:
        """Note under which name, from now on, the server that goes on with a run speaks."""
        with self._transaction(durable=True) as write:
            write.execute("UPDATE runs SET name = ? WHERE run = ?", (name, run))

    def finish(self, run: int, outcome: Outcome, seconds_wall: float, state_sha256: str | None) -> None:
        """Write down how a run ended."""
        with self._transaction(durable=True) as write:
            write.execute(
                "UPDATE runs SET completed = ?, reason = ?, seconds_wall = ?, seconds_clock = ?, state_sha256 = ? "
                "WHERE run = ?",
                (outcome.completed, outcome.reason, seconds_wall, outcome.ended_s, state_sha256, run),
            )

    def rewind(self, run: int, completed: int) -> None:
        """Forget what was written down of the rounds after this one (0: of all), and how the run ended."""
        with self._transaction(durable=True) as write:
            for table in OF_ROUNDS:
                write.execute(f"DELETE FROM {table} WHERE run = ? AND round > ?", (run, completed or -1))  # noqa: S608
            write.execute(
                "UPDATE runs SET completed = NULL, reason = NULL, seconds_wall = NULL, seconds_clock = NULL, "
                "state_sha256 = NULL WHERE run = ?",
                (run,),
            )

    def record_attack(self, run: int, record: AttackRecord) -> None:
        """Write down what an attack found, in place of an earlier outcome of the same settings."""
        key = (run, record.device, record.attack, record.knows, record.round, record.starts, record.steps)
        with self._transaction(durable=True) as write:
            write.execute(ATTACKS)
            write.execute(
                "INSERT OR REPLACE INTO attacks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*key, record.ntmse, record.excess_cosine, json.dumps(record.details)),
            )

    def _server_side(self, write: sqlite3.Connection, run: int, round: int, tallies: Mapping[str, tuple[Tally, ...]],
                     counts: Mapping[str, int]) -> None:  # fmt: skip
        for device, sheet in tallies.items():
            write.executemany("INSERT INTO transfers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                              _transfers(run, "server", round, device, sheet))  # fmt: skip
        write.executemany("INSERT INTO events VALUES (?, ?, NULL, ?, ?, '')",
                          [(run, round, kind, count) for kind, count in sorted(counts.items())])  # fmt: skip

    @contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            if not self._uncommitted:
                # FULL forces the log to the disk on commit; the log is one file, so earlier commits go with it. A group
                # may end with what must be forced.
                forced = durable or self.group > 1
                self._connection.execute(f"PRAGMA synchronous={'FULL' if forced else 'NORMAL'}")
            try:
                yield self._connection
            except BaseException:
                self._connection.rollback()
                self._uncommitted = 0
                raise
            self._uncommitted += 1
            if durable or self._uncommitted >= self.group:
                self._commit()
        except sqlite3.DatabaseError as error:  # as `_faults` does, without its cost: a fleet writes a lot
            raise _fault(self.path, error) from None

    def _commit(self) -> None:
        self._connection.commit()
        self._uncommitted = 0

    # ---- reading ------------------------------------------------------------------------------------------------

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query; `results.py` has the questions worth asking."""
        with _faults(self.path):
            return self._connection.execute(query, values).fetchall()

    def is_whole(self, run: int, round: int, devices: int, *, networked: bool) -> bool:
        """Whether all is written down of a round: what the server has to say of it, each device and each link."""
        query = "SELECT count(*) FROM rounds WHERE run = ? AND round = ?"
        told = "SELECT count(DISTINCT device) FROM stages WHERE run = ? AND round = ?"
        if networked:
            told = "SELECT count(DISTINCT device) FROM transfers WHERE run = ? AND round = ? AND side = 'device'"
        wire = "SELECT count(DISTINCT device || direction) FROM wire WHERE run = ? AND round = ?"
        return (
            self.rows(query, run, round) == [(1,)]
            and self.rows(told, run, round) == [(devices,)]
            and (not networked or self.rows(wire, run, round) == [(2 * devices,)])
        )

    def published_s(self, run: int, round: int) -> float:
        """Return when a round was over, on the run's clock."""
        ((seconds,),) = self.rows("SELECT published_s FROM rounds WHERE run = ? AND round = ?", run, round)
        return float(seconds)


def _misconduct(run: int, round: int, found: Iterable[Misconduct]) -> list[tuple[Any, ...]]:
    """Return what is written down of devices that sent what was of no use."""
    rows: list[tuple[Any, ...]] = []
    for one in found:
        told = ", ".join(f"{count} {reason}" for reason, count in one.useless.items())
        if one.useless:
            rows.append((run, round, one.device, "useless", sum(one.useless.values()), told))
        if one.excluded:
            rows.append((run, round, one.device, "excluded", 1, one.excluded))
        if one.unread:
            rows.append((run, round, one.device, "unread", one.unread, "messages after it was excluded"))
    return rows


def _stages(key: tuple[int, int, str], told: Telemetry, now: float | None) -> list[tuple[Any, ...]]:
    rows = []
    for stage, seconds in sorted(told.spent_s.items()):
        span = told.spans_s.get(stage)
        times = (None, None) if span is None or now is None else (now - span[0], now - span[1])
        rows.append((*key, stage, seconds, *times))
    return rows


def _transfers(run: int, side: str, round: int, device: str, tallies: tuple[Tally, ...]) -> list[tuple[Any, ...]]:
    return [
        (run, side, round, device, t.direction, t.kind, t.messages, t.payload_bytes, t.message_bytes) for t in tallies
    ]


def _read_only(path: Path) -> str:
    """Return the URI that opens a study for reading only.

    A reader of a WAL database keeps an index beside it. Where nothing can be written and no log waits to be read,
    the file is whole as it is and needs none.
    """
    whole = not os.access(path.parent, os.W_OK) and not path.with_name(f"{FILE}-wal").exists()
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if whole else ''}"


@contextmanager
def _connected(database: Path | str, *, uri: bool = False) -> Iterator[sqlite3.Connection]:
    """Connect; close again only if the block fails."""
    connection = sqlite3.connect(database, uri=uri)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Turn what SQLite reports of disk and file into one line for a person."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _fault(path, error) from None


def _fault(path: Path, error: sqlite3.DatabaseError) -> EnvironmentFault:
    return EnvironmentFault(f"{path}: {error}; check that the disk has room, may be written and is not damaged")
