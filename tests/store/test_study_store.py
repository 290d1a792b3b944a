"""The study store and the questions asked of it, against tables worked out by hand."""

import json
import math
import sqlite3
from pathlib import Path

import pytest
from store.store_tools import PLAN

from broker_server.study import results
from broker_server.study.records import Amendment, Closing, Outcome, RoundRecord
from broker_server.study.results import Balance, Bytes, Point
from broker_server.study.store import FILE, StudyStore
from edge_client.errors import EnvironmentFault
from edge_client.protocol.messages import Evaluation, Tally, Telemetry


def tally(direction: str, kind: str, messages: int, payload: int, message: int) -> Tally:
    return Tally(direction=direction, kind=kind, messages=messages, payload_bytes=payload, message_bytes=message)  # type: ignore[arg-type]


def evaluation(phase: str, epoch: int, accuracy: float, loss: float = 0.5) -> Evaluation:
    return Evaluation(phase=phase, epoch=epoch, loss=loss, threshold=1.0, accuracy=accuracy, auroc=0.5,
                      average_precision=0.25)  # fmt: skip


def telemetry(device: str, round: int = 1, **fields: object) -> Telemetry:
    given = {"outcome": "completed", "spent_s": {}, "tallies": (), "evaluations": (), "ignored": {},
             "state_sha256": ""} | fields  # fmt: skip
    return Telemetry(run=PLAN.name, round=round, device=device, seq=1, **given)  # type: ignore[arg-type]


def record(round: int = 1, **fields: object) -> RoundRecord:
    given = {"accepted": (), "late": (), "rejected": (), "missing": (), "tallies": {}, "counts": {}} | fields
    return RoundRecord(round, 1.0, 2.5, 3.0, 9.0, **given)  # type: ignore[arg-type]


# ---- what is written is read again -----------------------------------------------------------------------------------


def test_a_run_from_beginning_to_end(store: StudyStore, run: int) -> None:
    begun = results.last_run(store)
    assert (begun.name, begun.dataset, begun.method, begun.seed) == ("magic.5f0c21aa", "magic", "gca", 100)
    assert (begun.devices, begun.rounds, begun.completed, begun.state_sha256) == (2, 2, None, None)
    store.finish(run, Outcome(True, 2, 12.5), 13.0, "ab" * 32)
    ended = results.last_run(store)
    assert (ended.completed, ended.reason, ended.seconds_clock, ended.seconds_wall) == (1, "", 12.5, 13.0)
    assert ended.state_sha256 == "ab" * 32
    second = store.begin_run(PLAN, devices=2, dataset="magic")
    assert results.last_run(store).run == second == run + 1


def test_a_round_with_every_fate(store: StudyStore, run: int) -> None:
    store.record_round(
        run,
        record(
            accepted=("a", "b"), late=("c",), rejected=("d",), missing=("e",), counts={"stale": 3, "late": 1},
            diagnostics={"components": 4, "log_likelihood": -1.5},
        ),
    )  # fmt: skip
    times = store.rows("SELECT opened_s, closed_s, published_s, deadline_s, diagnostics FROM rounds WHERE run=?", run)
    assert times[0][:4] == (1.0, 2.5, 3.0, 9.0)
    assert json.loads(times[0][4]) == {"components": 4, "log_likelihood": -1.5}
    fates = store.rows("SELECT device, fate FROM participants ORDER BY device")
    assert fates == [("a", "accepted"), ("b", "accepted"), ("c", "late"), ("d", "rejected"), ("e", "missing")]
    assert results.events(store, run) == [("late", 1), ("stale", 3)]


def test_an_upload_that_came_after_its_record_is_late_with_its_bytes(store: StudyStore, run: int) -> None:
    """Only what was missing becomes late; what was decided stays, whatever is repeated."""
    store.record_round(run, record(1, accepted=("a",), missing=("b",), tallies={"b": ()}))
    store.record_round(run, record(2, accepted=("a",), missing=("b",)))
    for device, late in (("b", True), ("b", True), ("a", False)):
        counts = {"late": 1, "late_bytes": 40} if late else {"stale": 1}
        store.amend_round(run, Amendment(1, device, late, tally("up", "upload", 1, 0, 40), counts))
    fates = store.rows("SELECT round, device, fate FROM participants ORDER BY round, device")
    assert fates == [(1, "a", "accepted"), (1, "b", "late"), (2, "a", "accepted"), (2, "b", "missing")]
    booked = store.rows("SELECT round, device, sum(message_bytes) FROM transfers GROUP BY round, device")
    assert booked == [(1, "a", 40), (1, "b", 80)]
    events = store.rows("SELECT round, kind, sum(count) FROM events GROUP BY round, kind")
    assert events == [(1, "late", 2), (1, "late_bytes", 80), (1, "stale", 1)]


def test_telemetry_notes_and_wire(store: StudyStore, run: int) -> None:
    store.record_telemetry(run, telemetry("a", spent_s={"train": 1.5, "align": 0.5}))
    store.record_telemetry(run, telemetry("b", outcome="missed", detail="no broadcast"))
    store.record_telemetry(run, telemetry("c", outcome="idle"))
    store.note(run, 1, None, "note", "all is well")
    store.note(run, 1, "a", "reconnect", "timeout", count=2)
    store.record_wire(run, 1, "a", "up", 1000, 1104, 2, 52)
    store.record_wire(run, 1, "a", "down", 400, 452, 1, 104)
    store.record_wire(run, 2, "b", "up", 10, 62, 1, 0)
    assert store.rows("SELECT stage, seconds FROM stages ORDER BY stage") == [("align", 0.5), ("train", 1.5)]
    # A note is no event, and idling is as planned.
    assert results.events(store, run) == [("reconnect", 2), ("reported_missed", 1)]
    assert results.stream_bytes(store, run) == Bytes(1010, 400)
    assert results.wire_bytes(store, run) == Bytes(1104 + 52 + 62, 452 + 104)


def test_an_empty_run_has_no_figures(store: StudyStore, run: int) -> None:
    assert results.curve(store, run) == [] and results.peak([]) is None
    assert results.balance(store, run) == [] and results.events(store, run) == []
    assert results.application_bytes(store, run, "payload_bytes") == results.wire_bytes(store, run) == Bytes(0, 0)


# ---- the two ends of the wire ----------------------------------------------------------------------------------------

UPLOAD, CONTROL = tally("up", "upload", 2, 640, 900), tally("down", "control", 3, 0, 360)
GREETING, BROADCAST = tally("up", "control", 1, 0, 150), tally("down", "broadcast", 1, 80, 200)


def test_balance_when_nothing_was_lost(store: StudyStore, run: int) -> None:
    """Two devices of 900 + 150 bytes up, 360 + 200 down; the last goodbye (40) comes after the last record."""
    sheet, goodbye = (UPLOAD, CONTROL, GREETING, BROADCAST), (tally("up", "control", 1, 0, 40),)
    for device in ("a", "b"):
        store.record_telemetry(run, telemetry(device, tallies=sheet))
    store.record_round(run, record(tallies={"a": sheet, "b": sheet}))
    store.record_telemetry(run, telemetry("a", round=2, tallies=goodbye))
    store.record_closing(run, Closing(2, {"a": goodbye}, {"stale": 1}))
    assert results.balance(store, run) == [
        Balance("up", "control", 340, 340),
        Balance("up", "upload", 1800, 1800),
        Balance("down", "broadcast", 400, 400),
        Balance("down", "control", 720, 720),
    ]
    assert results.application_bytes(store, run, "message_bytes") == Bytes(2 * 1050 + 40, 2 * 560)
    assert results.application_bytes(store, run, "payload_bytes") == Bytes(2 * 640, 2 * 80)
    assert results.events(store, run) == [("stale", 1)]


def test_balance_names_the_lost_and_the_ignored(store: StudyStore, run: int) -> None:
    """One of two upload messages (450 bytes) never came; a control message (120) came but was stale."""
    device = (UPLOAD, tally("down", "control", 2, 0, 240), tally("down", "ignored", 1, 0, 120),
              tally("up", "telemetry", 1, 0, 777))  # fmt: skip
    store.record_telemetry(run, telemetry("a", tallies=device))
    store.record_round(run, record(tallies={"a": (tally("up", "upload", 1, 320, 450), CONTROL)}))
    assert results.balance(store, run) == [
        Balance("up", "telemetry", 777, 0),
        Balance("up", "upload", 900, 450),
        Balance("down", "control", 360, 240),
    ]
    assert results.application_bytes(store, run, "message_bytes") == Bytes(900, 360)  # telemetry is no part of it


# ---- curves ----------------------------------------------------------------------------------------------------------


def test_the_curve_is_a_mean_over_devices_in_order_of_time(store: StudyStore, run: int) -> None:
    for device, low in (("b", 0.5), ("a", 0.25)):
        store.record_telemetry(
            run,
            telemetry(device, evaluations=(evaluation("align", 1, low + 0.25), evaluation("recon", 2, low, loss=1.0),
                                           evaluation("recon", 1, low), evaluation("initial", 0, low))),
        )  # fmt: skip
    store.record_telemetry(run, telemetry("a", round=2, evaluations=(evaluation("recon", 1, 1.0),)))
    points = results.curve(store, run)
    assert [(p.round, p.phase, p.epoch, p.devices, p.accuracy) for p in points] == [
        (1, "initial", 0, 2, 0.375), (1, "recon", 1, 2, 0.375), (1, "recon", 2, 2, 0.375), (1, "align", 1, 2, 0.625),
        (2, "recon", 1, 1, 1.0),
    ]  # fmt: skip
    assert (points[2].loss, points[1].loss, points[0].auroc, points[0].average_precision) == (1.0, 0.5, 0.5, 0.25)
    assert [(p.round, p.phase) for p in results.by_round(points)] == [(1, "align"), (2, "recon")]


def test_a_phase_nobody_knows_comes_last_and_means_follow_device_order(store: StudyStore, run: int) -> None:
    """A device may report any phase. 0.1 + 0.2 + 0.3 added left to right is 0.6000000000000001."""
    for device, accuracy in (("c", 0.3), ("a", 0.1), ("b", 0.2)):
        said = (evaluation("zzz", 1, 0.5), evaluation("align", 1, accuracy))
        store.record_telemetry(run, telemetry(device, evaluations=said))
    points = results.curve(store, run)
    assert [(p.phase, p.accuracy) for p in points] == [("align", 0.6000000000000001 / 3), ("zzz", 0.5)]


def point(round: int, accuracy: float | None) -> Point:
    return Point(round, "recon", 1, 1, accuracy, None, None, None)


def test_of_equal_peaks_the_first_counts() -> None:
    points = [point(1, 0.5), point(2, None), point(3, 0.75), point(4, 0.75), point(5, 0.25)]
    assert results.peak(points) is points[2]
    assert results.peak([point(1, 0.0), point(2, 0.0)]) == point(1, 0.0)
    assert results.peak([point(1, None)]) is None


def test_nan_is_kept_as_null(store: StudyStore, run: int) -> None:
    nan = evaluation("recon", 1, math.nan, loss=math.nan)
    store.record_telemetry(run, telemetry("a", evaluations=(nan,)))
    assert store.rows("SELECT accuracy, loss, auroc FROM evaluations") == [(None, None, 0.5)]
    (undefined,) = results.curve(store, run)
    assert undefined.accuracy is None and undefined.loss is None and undefined.auroc == 0.5
    assert results.peak([undefined]) is None
    store.record_telemetry(run, telemetry("b", evaluations=(evaluation("recon", 1, 0.5),)))
    assert results.curve(store, run)[0].accuracy == 0.5  # of the devices where it is defined


def test_runs_of_one_study_do_not_mix(store: StudyStore, run: int) -> None:
    store.record_telemetry(run, telemetry("a", tallies=(UPLOAD,), evaluations=(evaluation("recon", 1, 1.0),)))
    other = store.begin_run(PLAN, devices=2, dataset="magic")
    assert results.curve(store, other) == [] and results.balance(store, other) == []


# ---- what is no study ------------------------------------------------------------------------------------------------


def test_a_folder_without_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=rf"{tmp_path}: holds no study \(study.sqlite is missing\); give"):
        StudyStore.open(tmp_path)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to look at" * 30, b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_corrupt_file_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(EnvironmentFault, match=r"study\.sqlite: .*is not damaged") as caught:
        StudyStore.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_empty_file_and_a_foreign_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    with pytest.raises(EnvironmentFault, match="is of version 0, this program reads version 2"):
        StudyStore.open(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(EnvironmentFault, match="is of version 7"):
        StudyStore.open(tmp_path)


def test_a_study_of_no_run_is_told(tmp_path: Path) -> None:
    with StudyStore.create(tmp_path) as store, pytest.raises(EnvironmentFault, match="no run"):
        results.last_run(store)


def test_a_place_that_cannot_hold_a_study_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="unable to open database file; check that the disk has room"):
        StudyStore.create(tmp_path / "nowhere")


def test_a_second_study_in_the_same_place_is_refused(store: StudyStore) -> None:
    with pytest.raises(EnvironmentFault, match="already exists"):
        StudyStore.create(store.path.parent)


def test_a_reader_cannot_write(store: StudyStore) -> None:
    with StudyStore.open(store.path.parent) as reader, pytest.raises(EnvironmentFault, match="readonly"):
        reader.begin_run(PLAN, 1, "magic")
