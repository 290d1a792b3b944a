"""One run's figures as the paper takes them, and beside them those it does not take."""

from dataclasses import dataclass
from pathlib import Path

from broker_server.study import results
from broker_server.study.records import AttackRecord
from broker_server.study.results import Point
from broker_server.study.store import StudyStore
from sim.attack.starts import STARTS, STEPS
from sim.data import device_name
from sim.reproduction.published import Measure
from sim.screen.summary import judged

PAPERS_ATTACKS = ("latent_only", "white_box_final")


@dataclass(frozen=True)
class Taken:
    """Of one seed's run. `value` is the figure, an accuracy in percent or what an attack gave; `where` says after what
    it fell; `early`: no centroid had been used by then.

    With an accuracy, `final` is the last evaluation, with its `auroc` and `average_precision`; `at_round_end` the best
    of the round ends, the instants at which all methods can be compared; `anywhere` the best of the whole curve;
    `locally` the best of the ends of local training, where models are then exchanged for their mean.
    """

    value: float
    where: str
    seconds_wall: float
    early: bool = False
    final: float | None = None
    at_round_end: float | None = None
    anywhere: float | None = None
    locally: float | None = None
    auroc: float | None = None
    average_precision: float | None = None


def take(directory: Path, measure: Measure) -> Taken:
    """Read a finished study, and attack it first where the measure asks for that and nobody has. Raises `GcaError`
    (several kinds) for a folder that holds no study."""
    if measure in ("ntmse", "excess_cosine"):
        return _extracted(directory, measure)
    with StudyStore.open(directory) as store:
        run = results.last_run(store)
        points = results.curve(store, run.run)
        one_device = measure == "alignment_peak_of_one_device"
        looked_at = _alignments_of_one_device(store, run.run) if one_device else judged(points, run.method)
        chosen, ends, best = results.peak(looked_at), results.peak(results.by_round(points)), results.peak(points)
        assert chosen and ends and best, "every device of a reproduction has the test set"
        last, local = points[-1], results.peak(results.by_round([one for one in points if one.phase == "recon"]))
        shared = any(one.phase == "global" for one in points)
        return Taken(
            _percent(chosen), f"r{chosen.round}/{chosen.phase}{chosen.epoch}", run.seconds_wall or 0.0,
            early=run.method == "gca" and chosen.round == 1 and chosen.phase == "recon",
            final=_percent(last), at_round_end=_percent(ends), anywhere=_percent(best),
            locally=_percent(local) if local and shared else None, auroc=last.auroc,
            average_precision=last.average_precision,
        )  # fmt: skip


def _extracted(directory: Path, measure: Measure) -> Taken:
    """What the paper's attack on the first device gives: through its codes alone for GCA, else through its model."""
    from sim.attack.study import attack_study

    with StudyStore.open(directory) as store:
        run = results.last_run(store)
        known = [one for one in results.attacks(store, run.run) if _is_the_papers(one, run.rounds)]
    record = known[0] if known else attack_study(directory)
    value = record.ntmse if measure == "ntmse" else record.excess_cosine
    assert value is not None, "an extraction has both figures"
    return Taken(value, f"r{record.round}", run.seconds_wall or 0.0)


def _is_the_papers(record: AttackRecord, rounds: int) -> bool:
    """Whether an attack that was written down is the paper's own: somebody may have tried a smaller one, a stronger
    one, another device or another round."""
    return (
        record.attack in PAPERS_ATTACKS and not record.knows and record.device == device_name(1)
        and (record.starts, record.steps) == (STARTS, STEPS)
        and record.round == rounds + (record.attack == "latent_only")
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
