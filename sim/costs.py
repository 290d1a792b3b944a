"""What a study had cost at every instant it was evaluated: bytes, seconds and joules to an accuracy.

An evaluation in a round's reconstruction comes before that round's exchange, one in its alignment, or of the model
the server sent, after it. Bytes are cumulative over all devices and both directions. Seconds are on the run's clock,
until the slowest device of the round had got so far; within a phase they grow in proportion to its epochs.
"""

from collections import defaultdict
from dataclasses import dataclass

from broker_server import results
from broker_server.results import Point
from broker_server.store import StudyStore

BEFORE_EXCHANGE = frozenset({"initial", "recon"})
"""Phases that end before the upload of their round."""


@dataclass(frozen=True)
class Instant:
    """One evaluation and what had been spent by then. `joules` is None where no power is known."""

    point: Point
    payload_bytes: int
    message_bytes: int
    wire_bytes: int
    seconds: float
    joules: float | None = None


def instants(store: StudyStore, run: int) -> list[Instant]:
    """Return the curve of a run with its costs, in the order in which it happened."""
    points = results.curve(store, run)
    payload, message = (_by_round(store, run, "transfers", column) for column in ("payload_bytes", "message_bytes"))
    wire = _by_round(store, run, "wire", "wire_bytes + ack_bytes")
    opened = dict(store.rows("SELECT round, opened_s FROM rounds WHERE run = ?", run))
    before, after = _seconds(store, run)
    last = _last_epochs(points)
    found = []
    for point in points:
        exchanged = point.phase not in BEFORE_EXCHANGE
        upto = point.round if exchanged else point.round - 1
        share = point.epoch / last[point.round, point.phase]
        spent = before[point.round] * share
        if exchanged:
            reached, end = after[point.round]
            spent = reached + (end - reached) * share
        found.append(
            Instant(point, _until(payload, upto), _until(message, upto), _until(wire, upto),
                    opened.get(point.round, 0.0) + spent)
        )  # fmt: skip
    return found


def first_to_reach(found: list[Instant], accuracy: float) -> Instant | None:
    """Return the first instant whose mean accuracy is at least this; None if there was none."""
    return next((one for one in found if one.point.accuracy is not None and one.point.accuracy >= accuracy), None)


def _by_round(store: StudyStore, run: int, table: str, column: str) -> dict[int, int]:
    """Sum a column over both directions, as the devices counted it, telemetry apart."""
    only = "AND side = 'device' AND kind != 'telemetry'" if table == "transfers" else ""
    return dict(
        store.rows(f"SELECT round, sum({column}) FROM {table} WHERE run = ? {only} GROUP BY round", run)  # noqa: S608
    )


def _until(by_round: dict[int, int], last: int) -> int:
    return sum(count for round, count in by_round.items() if round <= last)


def _seconds(store: StudyStore, run: int) -> tuple[dict[int, float], dict[int, tuple[float, float]]]:
    """Return, per round, the seconds from its opening until the slowest device had trained, and until it had the
    broadcast and had taken it in."""
    spent: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for round, device, stage, seconds in store.rows(
        "SELECT round, device, stage, seconds FROM stages WHERE run = ?", run
    ):
        spent[round, device][stage] = seconds
    before: dict[int, float] = defaultdict(float)
    after: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for (round, _), stages in spent.items():
        trained = stages.get("reconstruction", 0.0)
        reached = trained + stages.get("upload", 0.0) + stages.get("wait", 0.0)
        end = reached + stages.get("alignment", 0.0)
        before[round] = max(before[round], trained)
        after[round] = max(after[round][0], reached), max(after[round][1], end)
    return before, after


def _last_epochs(points: list[Point]) -> dict[tuple[int, str], int]:
    last: dict[tuple[int, str], int] = {}
    for point in points:
        key = point.round, point.phase
        last[key] = max(last.get(key, 1), point.epoch)
    return last
