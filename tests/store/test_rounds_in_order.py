"""Rounds are shown in their order, each once, whether or not all its devices tell of it."""

from pathlib import Path

from broker_server.plan import RunPlan
from broker_server.study.records import RoundRecord
from broker_server.study.store import StudyStore
from edge_client.protocol.messages import Evaluation, Telemetry
from sim.emulation.journal import Journal
from sim.screen.progress import Quiet


class Shown(Quiet):
    def __init__(self) -> None:
        self.rounds: list[tuple[int, float | None]] = []

    def round_done(self, record: RoundRecord, accuracy: float) -> None:
        self.rounds.append((record.round, accuracy if accuracy == accuracy else None))


def telemetry(round: int, device: str, accuracy: float | None) -> Telemetry:
    judged = () if accuracy is None else (
        Evaluation(phase="align", epoch=1, loss=0.5, threshold=1.0, accuracy=accuracy, auroc=0.5,
                   average_precision=0.5),
    )  # fmt: skip
    return Telemetry(run="demo.00000000", round=round, device=device, seq=round, outcome="completed", spent_s={},
                     tallies=(), evaluations=judged, ignored={}, state_sha256="")  # fmt: skip


def journal(folder: Path, shown: Shown) -> Journal:
    store = StudyStore.create(folder)
    return Journal(store, store.begin_run(RunPlan("demo", "00000000", "gca", 100, 3), 2, "breast_cancer"), shown)


def done(round: int) -> RoundRecord:
    return RoundRecord(round, 0.0, 1.0, 2.0, None, ("a", "b"), (), (), (), {}, {})


def test_a_device_that_tells_nothing_holds_up_no_later_round(tmp_path: Path) -> None:
    shown = Shown()
    book = journal(tmp_path, shown)
    for round in (1, 2, 3):
        book.record(done(round))
        book.observe(telemetry(round, "a", round / 4), 0.0)
        if round != 1:
            book.observe(telemetry(round, "b", round / 4), 0.0)
    assert shown.rounds == [(1, 0.25), (2, 0.5), (3, 0.75)]
    book.close()
    assert len(shown.rounds) == 3


def test_a_device_without_a_test_set_has_told_all_it_can(tmp_path: Path) -> None:
    shown = Shown()
    book = journal(tmp_path, shown)
    book.record(done(1))
    book.observe(telemetry(1, "a", 0.5), 0.0)
    assert shown.rounds == []
    book.observe(telemetry(1, "b", None), 0.0)
    assert shown.rounds == [(1, 0.5)]


def test_what_is_left_is_shown_at_the_end(tmp_path: Path) -> None:
    shown = Shown()
    book = journal(tmp_path, shown)
    book.record(done(1))
    book.close()
    assert shown.rounds == [(1, None)]
