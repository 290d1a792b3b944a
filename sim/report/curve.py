"""Accuracy beside what it had cost by then, ready to be drawn; the costs are those of `sim/costs/spent.py`."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from broker_server.study.results import Point, peak
from sim.costs.spent import BEFORE_EXCHANGE, Instant
from sim.report.study import ReportStudy
from sim.screen.summary import judged

BAND = (0.1, 0.9)
"""Quantiles over devices that a band runs between."""
QUALITIES = ("accuracy", "auroc", "average_precision")

Key = tuple[int, str, int]
"""(round, phase, epoch) of an evaluation."""


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation as a mean over devices.

    `rounds` counts rounds with fractions, epochs taken as equally long. `wire` is None where no link was counted.
    `bands` holds (low, high) over devices by quality. `last`: the round's last evaluation; `peak`: the best of
    the instants that a peak is chosen from; `free`: nothing had been uploaded by then.
    """

    at: Instant
    rounds: float
    wire: int | None
    bands: Mapping[str, tuple[float, float] | None]
    last: bool
    peak: bool
    free: bool

    @property
    def point(self) -> Point:
        return self.at.point


def curve(study: ReportStudy) -> list[CurvePoint]:
    """Return the curve of a study in the order in which it happened."""
    bands = _bands(study)
    points = [one.point for one in study.instants]
    per_round, seen = Counter(point.round for point in points), Counter[int]()
    best = peak(judged(points, study.run.method))
    curve = []
    for at in study.instants:
        point = at.point
        seen[point.round] += 1
        curve.append(CurvePoint(
            at, point.round - 1 + seen[point.round] / per_round[point.round],
            at.wire_bytes if study.links_counted else None, bands[point.round, point.phase, point.epoch],
            seen[point.round] == per_round[point.round], point == best,
            point.round - (point.phase in BEFORE_EXCHANGE) <= 0,
        ))  # fmt: skip
    return curve


def first_at(curve: Iterable[CurvePoint], target: float) -> CurvePoint | None:
    """Return the first point whose mean accuracy is at least `target`; None if there is none."""
    return next((one for one in curve if one.point.accuracy is not None and one.point.accuracy >= target), None)


def targets(peaks: Iterable[float], count: int = 3) -> list[float]:
    """Return accuracies worth asking for: the highest multiples of 5 % that some study reached."""
    top = max(peaks, default=0.0)
    highest = int(np.floor(top * 20 + 1e-9))
    return [step / 20 for step in range(max(1, highest - count + 1), highest + 1)]


def _bands(study: ReportStudy) -> dict[Key, dict[str, tuple[float, float] | None]]:
    values: dict[Key, dict[str, list[float]]] = defaultdict(lambda: {quality: [] for quality in QUALITIES})
    for one in study.evaluations:
        here = values[one.round, one.phase, one.epoch]
        for quality in QUALITIES:
            if (value := getattr(one, quality)) is not None:
                here[quality].append(value)
    return {
        instant: {
            quality: (float(np.quantile(all_, BAND[0])), float(np.quantile(all_, BAND[1]))) if all_ else None
            for quality, all_ in by_quality.items()
        }
        for instant, by_quality in values.items()
    }
