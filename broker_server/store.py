"""The study store: one SQLite file in WAL mode, one transaction per fact, readable while a run writes it.

A process killed at any instant leaves whole rounds behind: SQLite rolls back what was not committed.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker_server.plan import RunPlan
from broker_server.records import Closing, Outcome, RoundRecord
from broker_server.schema import TABLES, VERSION
from edge_client.errors import EnvironmentFault
from edge_client.protocol.messages import Tally, Telemetry

FILE = "study.sqlite"


class StudyStore:
    """An open study. Use `create` or `open`, and close it (or use it as a context manager)."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def create(cls, directory: Path) -> Self:
        """Make the store of a new study; raises `EnvironmentFault` when the folder cannot hold one."""
        path = directory / FILE
        with _faults(path):
            connection = sqlite3.connect(path)
            connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA user_version={VERSION}; {TABLES}")
            return cls(path, connection)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open an existing study for reading; raises `EnvironmentFault` when it is none or cannot be read."""
        path = directory / FILE
        if not path.is_file():
            raise EnvironmentFault(f"{directory}: holds no study ({FILE} is missing); give the folder of a study")
        with _faults(path):
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise EnvironmentFault(f"{path}: is of version {version}, this program reads version {VERSION}")
        return cls(path, connection)

    def close(self) -> None:
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
        with self._transaction() as write:
            row = (run, record.round, *times, json.dumps(record.diagnostics))
            write.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            write.executemany("INSERT INTO participants VALUES (?, ?, ?, ?)", fates)
            self._server_side(write, run, record.round, record.tallies, record.counts)

    def record_closing(self, run: int, closing: Closing) -> None:
        """Write down what came after the last round."""
        with self._transaction() as write:
            self._server_side(write, run, closing.round, closing.tallies, closing.counts)

    def record_telemetry(self, run: int, told: Telemetry) -> None:
        """Write down what a device reported."""
        key = (run, told.round, told.device)
        with self._transaction() as write:
            write.executemany("INSERT INTO transfers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                              _transfers(run, "device", told.round, told.device, told.tallies))  # fmt: skip
            write.executemany(
                "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*key, e.phase, e.epoch, e.loss, e.threshold, e.accuracy, e.auroc, e.average_precision)
                 for e in told.evaluations],
            )  # fmt: skip
            write.executemany("INSERT INTO stages VALUES (?, ?, ?, ?, ?)",
                              [(*key, stage, seconds) for stage, seconds in sorted(told.spent_s.items())])  # fmt: skip
            if told.outcome not in ("completed", "idle"):
                write.execute("INSERT INTO events VALUES (?, ?, ?, ?, 1, ?)", (*key, told.outcome, told.detail))

    def record_wire(self, run: int, round: int, device: str, direction: str, stream_bytes: int, wire_bytes: int,
                    segments: int, ack_bytes: int) -> None:  # fmt: skip
        """Write down what crossed a device's link in one direction."""
        with self._transaction() as write:
            row = (run, round, device, direction, stream_bytes, wire_bytes, segments, ack_bytes)
            write.execute("INSERT INTO wire VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def note(self, run: int, round: int, device: str | None, kind: str, detail: str, count: int = 1) -> None:
        """Write down an event."""
        with self._transaction() as write:
            write.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (run, round, device, kind, count, detail))

    def finish(self, run: int, outcome: Outcome, seconds_wall: float, state_sha256: str | None) -> None:
        """Write down how a run ended."""
        with self._transaction() as write:
            write.execute(
                "UPDATE runs SET completed = ?, reason = ?, seconds_wall = ?, seconds_clock = ?, state_sha256 = ? "
                "WHERE run = ?",
                (outcome.completed, outcome.reason, seconds_wall, outcome.ended_s, state_sha256, run),
            )

    def _server_side(self, write: sqlite3.Connection, run: int, round: int, tallies: Mapping[str, tuple[Tally, ...]],
                     counts: Mapping[str, int]) -> None:  # fmt: skip
        for device, sheet in tallies.items():
            write.executemany("INSERT INTO transfers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                              _transfers(run, "server", round, device, sheet))  # fmt: skip
        write.executemany("INSERT INTO events VALUES (?, ?, NULL, ?, ?, '')",
                          [(run, round, kind, count) for kind, count in sorted(counts.items())])  # fmt: skip

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _faults(self.path), self._connection:
            yield self._connection

    # ---- reading ------------------------------------------------------------------------------------------------

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query; `results.py` has the questions worth asking."""
        with _faults(self.path):
            return self._connection.execute(query, values).fetchall()


def _transfers(run: int, side: str, round: int, device: str, tallies: tuple[Tally, ...]) -> list[tuple[Any, ...]]:
    return [
        (run, side, round, device, t.direction, t.kind, t.messages, t.payload_bytes, t.message_bytes) for t in tallies
    ]


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Turn what SQLite reports of disk and file into one line for a person."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise EnvironmentFault(
            f"{path}: {error}; check that the disk has room, may be written and is not damaged"
        ) from None
