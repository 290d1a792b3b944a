"""One run's figures as the paper takes them, and beside them those it does not take."""

from dataclasses import dataclass
from pathlib import Path

from broker_server import results
from broker_server.results import Point
from broker_server.store import StudyStore
from sim.reproduction.published import Measure
from sim.summary import judged


@dataclass(frozen=True)
class Taken:
    """Of one seed's run, accuracies in percent. `round`, `phase` and `epoch` say where the figure fell; `early`: no
    centroid had been used by then. `final` is the last evaluation, with its `auroc` and `average_precision`;
    `at_round_end` the best of the round ends, the instants at which all methods can be compared; `anywhere` the best of
    the whole curve."""

    accuracy: float
    round: int
    phase: str
    epoch: int
    early: bool
    final: float
    at_round_end: float
    anywhere: float
    auroc: float | None
    average_precision: float | None
    seconds_wall: float


def take(directory: Path, measure: Measure) -> Taken:
    """Read a finished study. Raises `GcaError` (several kinds) for a folder that holds none."""
    with StudyStore.open(directory) as store:
        run = results.last_run(store)
        points = results.curve(store, run.run)
        one_device = measure == "alignment_peak_of_one_device"
        looked_at = _alignments_of_one_device(store, run.run) if one_device else judged(points, run.method)
        chosen, ends, best = results.peak(looked_at), results.peak(results.by_round(points)), results.peak(points)
        assert chosen and ends and best, "every device of a reproduction has the test set"
        last = points[-1]
        return Taken(
            _percent(chosen), chosen.round, chosen.phase, chosen.epoch,
            early=run.method == "gca" and chosen.round == 1 and chosen.phase == "recon",
            final=_percent(last), at_round_end=_percent(ends), anywhere=_percent(best), auroc=last.auroc,
            average_precision=last.average_precision, seconds_wall=run.seconds_wall or 0.0,
        )  # fmt: skip


def _alignments_of_one_device(store: StudyStore, run: int) -> list[Point]:
    """The weighting diagnostic follows one fixed device: ours is the first by name."""
    rows = store.rows(
        "SELECT round, phase, epoch, 1, accuracy, auroc, average_precision, loss FROM evaluations WHERE run = ? "
        "AND phase = 'align' AND device = (SELECT min(device) FROM evaluations WHERE run = ?) ORDER BY round, epoch",
        run,
        run,
    )
    return [Point(*row) for row in rows]


def _percent(point: Point) -> float:
    return 100.0 * (point.accuracy or 0.0)
