"""Accuracy against what it had cost by then: cumulative bytes of each ledger, seconds, rounds."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from broker_server.results import Point, peak
from sim.report.study import ReportStudy
from sim.report.timeline import BEFORE_UPLOAD, DeviceRound, Instant, evaluated_at
from sim.summary import judged

BAND = (0.1, 0.9)
"""Quantiles over devices that a band runs between."""
QUALITIES = ("accuracy", "auroc", "average_precision")
LEDGERS = ("payload", "message", "wire")


@dataclass(frozen=True)
class CurvePoint:
    """The mean over devices of one evaluation, and what had been spent when the last of them came to it.

    `rounds` counts rounds with fractions, epochs taken as equally long. `seconds` is since the run began, None where
    the round's times are not known; `payload`, `message` and `wire` are bytes over all devices and both directions,
    `wire` None where no link was counted. `bands` holds (low, high) over devices by quality. `last`: the round's last
    evaluation; `candidate`: one of the instants a peak is chosen from; `free`: nothing had been uploaded by then.
    """

    point: Point
    rounds: float
    seconds: float | None
    payload: int
    message: int
    wire: int | None
    bands: Mapping[str, tuple[float, float] | None]
    last: bool
    candidate: bool
    free: bool
    peak: bool


def curve(study: ReportStudy, found: Iterable[DeviceRound]) -> list[CurvePoint]:
    """Return the curve of a study in the order of time.

    An epoch before its round's upload costs what all rounds before have cost; any other includes its own round.
    """
    times = evaluated_at(study, found)
    spent = cumulative(study)
    bands = _bands(study)
    per_round = Counter(point.round for point in study.points)
    seen: Counter[int] = Counter()
    candidates = judged(list(study.points))
    best = peak(candidates)
    curve = []
    for point in study.points:
        seen[point.round] += 1
        instant = (point.round, point.phase, point.epoch)
        paid = point.round - (point.phase in BEFORE_UPLOAD)
        curve.append(CurvePoint(
            point, point.round - 1 + seen[point.round] / per_round[point.round], times.get(instant),
            spent["payload"][paid], spent["message"][paid], spent["wire"][paid] if study.crossings else None,
            bands[instant], seen[point.round] == per_round[point.round], point in candidates,
            paid == 0, point == best,
        ))  # fmt: skip
    return curve


def cumulative(study: ReportStudy) -> dict[str, list[int]]:
    """Return, per ledger, the bytes of rounds 0 to r at place r.

    A link's counters are read when its round is published. The broadcast, on its way then, is in the next reading;
    here it is moved back to its own round, with the headers that a message of this study has on average.
    """
    rounds = study.run.rounds
    payload, message, wire, broadcast = ([0] * (rounds + 1) for _ in range(4))
    for one in study.traffic:
        if one.round <= rounds:
            payload[one.round] += one.payload
            message[one.round] += one.message
            broadcast[one.round] += one.message * (one.kind == "broadcast")
    for crossing in study.crossings:
        if crossing.round <= rounds:
            wire[crossing.round] += crossing.wire
    overhead = sum(wire) / max(1, sum(message))
    for number in range(rounds):
        moved = min(round(broadcast[number] * overhead), wire[number + 1])
        wire[number], wire[number + 1] = wire[number] + moved, wire[number + 1] - moved
    return {name: list(accumulate(c)) for name, c in zip(LEDGERS, (payload, message, wire), strict=True)}


def first_at(curve: Iterable[CurvePoint], target: float) -> CurvePoint | None:
    """Return the first candidate whose mean accuracy reaches `target`; None if none does."""
    reached = (one for one in curve if one.candidate and one.point.accuracy is not None)
    return next((one for one in reached if (one.point.accuracy or 0.0) >= target), None)


def targets(peaks: Iterable[float], count: int = 3) -> list[float]:
    """Return accuracies worth asking for: the highest multiples of 5 % that some study reached."""
    top = max(peaks, default=0.0)
    highest = int(np.floor(top * 20 + 1e-9))
    return [step / 20 for step in range(max(1, highest - count + 1), highest + 1)]


def _bands(study: ReportStudy) -> dict[Instant, dict[str, tuple[float, float] | None]]:
    values: dict[Instant, dict[str, list[float]]] = defaultdict(lambda: {quality: [] for quality in QUALITIES})
    for one in study.evaluations:
        for quality in QUALITIES:
            value = getattr(one, quality)
            if value is not None:
                values[one.round, one.phase, one.epoch][quality].append(value)
            else:
                values[one.round, one.phase, one.epoch]
    return {
        instant: {
            quality: (float(np.quantile(all_, BAND[0])), float(np.quantile(all_, BAND[1]))) if all_ else None
            for quality, all_ in by_quality.items()
        }
        for instant, by_quality in values.items()
    }
