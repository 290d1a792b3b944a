"""What a study's tables say: curves, peaks, byte totals, and whether the two ends of the wire agree.

Accuracies are means over devices, summed in device order. The paper's figure is the maximum over evaluations, which
looks at the test set; so each peak names where it fell, and whether that was before any centroid had come down.
"""

import json
from dataclasses import dataclass
from itertools import groupby
from typing import Any, get_args

from broker_server.study.records import AttackRecord
from broker_server.study.store import StudyStore
from edge_client.errors import EnvironmentFault
from edge_client.protocol.messages import Phase

PHASES: tuple[str, ...] = get_args(Phase)


@dataclass(frozen=True)
class Point:
    """The mean over `devices` devices of one evaluation; None where it is undefined."""

    round: int
    phase: str
    epoch: int
    devices: int
    accuracy: float | None
    auroc: float | None
    average_precision: float | None
    loss: float | None


@dataclass(frozen=True)
class Bytes:
    """Bytes over all devices and rounds."""

    up: int
    down: int


@dataclass(frozen=True)
class Balance:
    """One kind of traffic in one direction, as counted by its sender and by its receiver, in message bytes."""

    direction: str
    kind: str
    sent: int
    received: int


@dataclass(frozen=True)
class RunRow:
    """The row of a run; see `schema.py`."""

    run: int
    name: str
    dataset: str
    method: str
    seed: int
    devices: int
    rounds: int
    completed: int | None
    reason: str | None
    seconds_wall: float | None
    seconds_clock: float | None
    state_sha256: str | None


def last_run(store: StudyStore) -> RunRow:
    """Return the newest run of a study; raises `EnvironmentFault` when none was begun."""
    rows = store.rows("SELECT * FROM runs ORDER BY run DESC LIMIT 1")
    if not rows:
        raise EnvironmentFault(f"{store.path}: holds no run; its program ended before one began: run the study again")
    return RunRow(*rows[0])


def curve(store: StudyStore, run: int) -> list[Point]:
    """Return the mean evaluations in the order in which they happened; phases that nobody knows come last."""
    # Means are taken here: SQLite's avg promises neither an order of summation nor the same rounding in every version.
    rows = store.rows(
        "SELECT round, phase, epoch, accuracy, auroc, average_precision, loss FROM evaluations WHERE run = ? "
        "ORDER BY round, phase, epoch, device",
        run,
    )
    points = [_point(key, [row[3:] for row in group]) for key, group in groupby(rows, key=lambda row: row[:3])]
    return sorted(points, key=lambda p: (p.round, _order(p.phase), p.epoch))


def _point(key: tuple[int, str, int], figures: list[tuple[float | None, ...]]) -> Point:
    accuracy, auroc, precision, loss = (_mean(column) for column in zip(*figures, strict=True))
    return Point(*key, len(figures), accuracy, auroc, precision, loss)


def _mean(values: tuple[float | None, ...]) -> float | None:
    """Return the mean of what is defined, in the order given."""
    defined = [value for value in values if value is not None]
    total = 0.0
    for value in defined:
        total += value
    return total / len(defined) if defined else None


def _order(phase: str) -> tuple[int, str]:
    return (PHASES.index(phase) if phase in PHASES else len(PHASES), phase)


def peak(points: list[Point]) -> Point | None:
    """Return the first point of the highest accuracy; None if nothing was evaluated."""
    return max((p for p in points if p.accuracy is not None), key=lambda p: p.accuracy or 0.0, default=None)


def by_round(points: list[Point]) -> list[Point]:
    """Return the last evaluation of each round."""
    return list({point.round: point for point in points}.values())


def fates(store: StudyStore, run: int) -> dict[str, int]:
    """Return how many of the uploads that were asked for had which fate."""
    return dict(store.rows("SELECT fate, count(*) FROM participants WHERE run = ? GROUP BY fate", run))


def application_bytes(store: StudyStore, run: int, column: str) -> Bytes:
    """Return "payload_bytes" or "message_bytes" as the devices counted them, telemetry apart."""
    assert column in ("payload_bytes", "message_bytes")
    query = f"SELECT direction, sum({column}) FROM transfers WHERE run = ? AND side = 'device' AND kind != 'telemetry' GROUP BY direction"  # noqa: E501, S608
    return _bytes(store.rows(query, run))


def stream_bytes(store: StudyStore, run: int) -> Bytes:
    """Return the bytes of MQTT that crossed the links, as a capture of the TCP payload sees them."""
    return _bytes(store.rows("SELECT direction, sum(stream_bytes) FROM wire WHERE run = ? GROUP BY direction", run))


def wire_bytes(store: StudyStore, run: int) -> Bytes:
    """Return the bytes on the links with TCP/IP headers and pure acknowledgements."""
    query = "SELECT direction, sum(wire_bytes + ack_bytes) FROM wire WHERE run = ? GROUP BY direction"
    return _bytes(store.rows(query, run))


def balance(store: StudyStore, run: int) -> list[Balance]:
    """Return, per kind of traffic, what was sent and what was received. Equal unless something was lost on the way.

    "ignored" has only a receiver: what it holds was sent as another kind.
    """
    rows = store.rows(
        "SELECT direction, kind, sum(CASE WHEN (side = 'device') = (direction = 'up') THEN message_bytes ELSE 0 END), "
        "sum(CASE WHEN (side = 'device') = (direction = 'down') THEN message_bytes ELSE 0 END) "
        "FROM transfers WHERE run = ? AND kind != 'ignored' GROUP BY direction, kind ORDER BY direction DESC, kind",
        run,
    )
    return [Balance(*row) for row in rows]


def events(store: StudyStore, run: int) -> list[tuple[str, int]]:
    """Return how often what was late, lost, refused or odd, by kind; plain notes apart."""
    return store.rows("SELECT kind, sum(count) FROM events WHERE run = ? AND kind != 'note' GROUP BY kind", run)


def attacks(store: StudyStore, run: int) -> list[AttackRecord]:
    """Return what attacks on the run's devices found, by device and attack; none if the run was never attacked."""
    if not store.rows("SELECT 1 FROM sqlite_master WHERE name = 'attacks'"):
        return []
    rows = store.rows(
        "SELECT device, attack, knows, round, starts, steps, ntmse, excess_cosine, details FROM attacks WHERE run = ? "
        "ORDER BY device, attack, knows, round, starts, steps",
        run,
    )
    return [
        AttackRecord(device, attack, knows, round, starts, steps, ntmse, excess_cosine, json.loads(details))
        for device, attack, knows, round, starts, steps, ntmse, excess_cosine, details in rows
    ]


def _bytes(rows: list[tuple[Any, ...]]) -> Bytes:
    sums = dict(rows)
    return Bytes(int(sums.get("up") or 0), int(sums.get("down") or 0))
