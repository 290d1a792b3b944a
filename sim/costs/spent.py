"""What a study had cost at every instant it was evaluated: bytes, seconds and joules to an accuracy.

An evaluation in a round's reconstruction comes before that round's exchange, one in its alignment, or of the model
the server sent, after it. Bytes are cumulative over all devices and both directions. Seconds are on the run's clock,
until the slowest device had got so far, by its own account of when it began and ended (on a slow link that is long
after the server has opened the next round); within a phase they grow in proportion to its epochs. Joules are those of
all devices that took part (`sim/costs/energy.py`).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from broker_server.study import results
from broker_server.study.results import Point
from broker_server.study.store import StudyStore
from sim.costs.energy import ASIDE, WAITING, Energy, Power, together

BEFORE_EXCHANGE = frozenset({"initial", "recon"})
"""Phases that end before the upload of their round."""


@dataclass(frozen=True)
class Instant:
    """One evaluation and what had been spent by then. `energy` is None where nobody asked for it."""

    point: Point
    payload_bytes: int
    message_bytes: int
    wire_bytes: int
    seconds: float
    energy: Energy | None = None

    @property
    def joules(self) -> float | None:
        """The known part, or None where no power at all is known."""
        return self.energy.total if self.energy else None


def instants(store: StudyStore, run: int, powers: Mapping[str, Power] | None = None) -> list[Instant]:
    """Return the curve of a run with its costs, in the order in which it happened. `powers` says what each device
    burns."""
    points = results.curve(store, run)
    payload, message = (_by_round(store, run, "transfers", column) for column in ("payload_bytes", "message_bytes"))
    wire = _by_round(store, run, "wire", "wire_bytes + ack_bytes")
    opened: dict[int, float] = dict(store.rows("SELECT round, opened_s FROM rounds WHERE run = ?", run))
    stages = _stages(store, run)
    progress = _Progress(store, run)
    energies = _Energies(store, run, stages, powers) if powers else None
    last = _last_epochs(points)
    found = []
    for point in points:
        round, share = point.round, point.epoch / last[point.round, point.phase]
        exchanged = point.phase not in BEFORE_EXCHANGE
        upto = round if exchanged else round - 1
        found.append(
            Instant(
                point, _until(payload, upto), _until(message, upto), _until(wire, upto),
                progress.seconds(round, exchanged, share, opened.get(round, 0.0)),
                energies.until(round, exchanged, share) if energies else None,
            )
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


Stages = dict[tuple[int, str], dict[str, float]]
"""Seconds by stage, of a device in a round."""

BEFORE_BROADCAST = ("reconstruction", *WAITING)


def _stages(store: StudyStore, run: int) -> Stages:
    spent: Stages = defaultdict(dict)
    rows = store.rows("SELECT round, device, stage, seconds FROM stages WHERE run = ? ORDER BY round, device", run)
    for round, device, stage, seconds in rows:
        spent[round, device][stage] = seconds
    return spent


class _Progress:
    """When devices trained, before and after the exchange of each round, on the run's clock."""

    def __init__(self, store: StudyStore, run: int) -> None:
        self._begun: dict[tuple[int, bool], list[tuple[float, float]]] = defaultdict(list)
        query = "SELECT round, stage, began_s, seconds FROM stages WHERE run = ? AND began_s IS NOT NULL"
        for round, stage, began, seconds in store.rows(query, run):
            if stage not in (*WAITING, ASIDE):
                self._begun[round, stage not in BEFORE_BROADCAST].append((began, seconds))

    def seconds(self, round: int, exchanged: bool, share: float, opened: float) -> float:
        """Return when the slowest device had done `share` of its work before or after the exchange. Where no device
        says when it did, that is not known, and the round's opening has to stand for it."""
        return max((began + share * seconds for began, seconds in self._begun[round, exchanged]), default=opened)


def _afterwards(seconds: Mapping[str, float]) -> dict[str, float]:
    """The stages that take in the broadcast, whatever the method calls them."""
    return {stage: value for stage, value in seconds.items() if stage not in (*BEFORE_BROADCAST, ASIDE)}


class _Energies:
    """What all devices had burnt, by round."""

    def __init__(self, store: StudyStore, run: int, stages: Stages, powers: Mapping[str, Power]) -> None:
        query = "SELECT round, device, direction, sum(wire_bytes + ack_bytes) FROM wire WHERE run = ? GROUP BY 1, 2, 3"
        self._wire = {(round, device, way): count for round, device, way, count in store.rows(query, run)}
        self._stages, self._powers = stages, powers
        self._rounds: dict[int, Energy] = {}

    def until(self, round: int, exchanged: bool, share: float) -> Energy:
        """Return the energy of all rounds before this one, and of this one until `share` of a phase was done."""
        before = [self._whole(earlier) for earlier in range(round)]
        return together([*before, self._of(round, exchanged, share)])

    def _whole(self, round: int) -> Energy:
        if round not in self._rounds:
            self._rounds[round] = self._of(round, exchanged=True, share=1.0)
        return self._rounds[round]

    def _of(self, round: int, exchanged: bool, share: float) -> Energy:
        parts = []
        for device, power in sorted(self._powers.items()):
            stages = self._stages.get((round, device), {})
            if exchanged:
                done = {**stages, **{stage: share * value for stage, value in _afterwards(stages).items()}}
                up, down = (int(self._wire.get((round, device, way)) or 0) for way in ("up", "down"))
                parts.append(power.of_round(done, up, down))
            else:
                parts.append(power.of_round({"reconstruction": share * stages.get("reconstruction", 0.0)}, 0, 0))
        return together(parts)


def _last_epochs(points: list[Point]) -> dict[tuple[int, str], int]:
    last: dict[tuple[int, str], int] = {}
    for point in points:
        key = point.round, point.phase
        last[key] = max(last.get(key, 1), point.epoch)
    return last
