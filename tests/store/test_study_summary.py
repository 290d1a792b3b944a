"""What is said of a finished study, from a small study written by hand."""

import io
import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from broker_server.plan import RunPlan
from broker_server.study.records import Outcome, RoundRecord
from broker_server.study.store import FILE, StudyStore
from edge_client.protocol.messages import Evaluation, Tally, Telemetry
from sim.config.study import Study, load_study
from sim.screen.summary import result_json, show_summary
from sim.screen.units import bytes_text, duration_text

STUDY = load_study("demo", {"devices": 1, "rounds": 2, "training.hidden": [3], "training.latent_dim": 2})
# P for d_x = 4, hidden (3), d_z = 2: 4*3+3, 3*2+2, 2*3+3, 3*4+4
PARAMETERS = 15 + 8 + 9 + 16
SHEET = (
    Tally(direction="up", kind="upload", messages=1, payload_bytes=24, message_bytes=100),
    Tally(direction="down", kind="broadcast", messages=1, payload_bytes=8, message_bytes=60),
)


def written(folder: Path, curve: list[tuple[int, str, int, float]], lost: bool = False, method: str = "gca") -> Path:
    """Write a study of one device with this curve of (round, phase, epoch, accuracy)."""
    with StudyStore.create(folder) as store:
        run = store.begin_run(RunPlan("demo", "00000000", method, 100, 2), 1, "breast_cancer")
        evaluations = {
            round: tuple(
                Evaluation(phase=phase, epoch=epoch, loss=0.5, threshold=1.0, accuracy=accuracy, auroc=accuracy,
                           average_precision=float("nan"))
                for r, phase, epoch, accuracy in curve if r == round
            )
            for round in (1, 2)
        }  # fmt: skip
        for round in (1, 2):
            received = SHEET[1:] if lost and round == 2 else SHEET
            store.record_round(
                run, RoundRecord(round, 0, 1, 2, None, ("d1",), (), (), (), {"d1": received}, {"stale": 2})
            )
            store.record_telemetry(
                run,
                Telemetry(run="demo.00000000", round=round, device="d1", seq=round, outcome="completed", spent_s={},
                          tallies=SHEET, evaluations=evaluations[round], ignored={}, state_sha256=""),
            )  # fmt: skip
            store.record_wire(run, round, "d1", "up", 130, 182, 1, 52)
        store.finish(run, Outcome(True, 2, 90.0), 150.0, "cd" * 32)
    return folder


CURVE = [(1, "recon", 1, 0.75), (1, "align", 1, 0.5), (2, "recon", 1, 0.75), (2, "align", 1, 0.625)]


def shown(folder: Path, study: Study = STUDY) -> str:
    console = Console(file=io.StringIO(), width=120)
    show_summary(folder, study, 4, console)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_the_one_object(tmp_path: Path) -> None:
    result = result_json(written(tmp_path, CURVE))
    assert json.loads(json.dumps(result, allow_nan=False)) == result == {
        "study": str(tmp_path), "dataset": "breast_cancer", "method": "gca", "devices": 1, "rounds": 2,
        "peak_accuracy": 0.75, "peak": {"round": 1, "phase": "recon", "epoch": 1}, "final_accuracy": 0.625,
        "auroc": 0.625, "average_precision": None,
        "payload_bytes": {"up": 48, "down": 16}, "message_bytes": {"up": 200, "down": 120},
        "stream_bytes": {"up": 260, "down": 0}, "wire_bytes": {"up": 468, "down": 0},
        "seconds": {"wall": 150.0, "clock": 90.0}, "state_sha256": "cd" * 32,
    }  # fmt: skip


def test_without_any_evaluation_the_figures_are_null(tmp_path: Path) -> None:
    result = result_json(written(tmp_path, []))
    assert result["peak"] is result["peak_accuracy"] is result["final_accuracy"] is result["auroc"] is None
    assert "no evaluation: the devices had no test set" in shown(tmp_path)


def test_the_summary_says_what_must_not_be_hidden(tmp_path: Path) -> None:
    text = shown(written(tmp_path, CURVE))
    assert "peak accuracy 75.00 % after epoch 1 of phase recon in round 1; a peak is chosen by looking" in text
    assert "the peak precedes the first alignment" in text
    assert "ledgers: bytes sent = bytes received, for every kind of message" in text
    assert "events: stale 4" in text
    assert "final accuracy 62.50 %, mean over 1 of 1 device after round 2" in text
    assert "time on the run's clock 90.0 s; a person waited 2.5 min" in text
    # Sending P = 48 floats in two rounds is 2 * 4 * 48 = 384 bytes each way: 8 times the 48 up, 24 times the 16 down.
    assert PARAMETERS == 48
    assert (
        "full parameters (P = 48), payload 384 B 384 B 768 B that is, times this run's payload 8.0 x 24.0 x 12.0 x"
        in text
    )
    assert "uploads:" not in text and "did not complete" not in text
    assert str(tmp_path) in text


def test_devices_that_judge_themselves_once_a_round_have_a_peak_too(tmp_path: Path) -> None:
    text = shown(written(tmp_path, [(1, "align", 5, 0.75), (2, "align", 5, 0.625)]))
    assert "peak accuracy 75.00 % after epoch 5 of phase align in round 1" in text and "no evaluation" not in text
    assert "final accuracy 62.50 %" in text


def test_an_accuracy_that_fell_is_a_warning_with_the_round(tmp_path: Path) -> None:
    """0.875 in round 1, then 0.8125 and 0.5 at the ends of both rounds: 37.5 points lost, 5 from round 1 on."""
    text = shown(written(tmp_path, [(1, "recon", 1, 0.875), (1, "align", 1, 0.8125), (2, "align", 1, 0.5)]))
    assert (
        "warning: the final accuracy is 37.5 points below the peak of round 1; from the end of round 1 on it stayed at "
        "least 5 below: more rounds made it worse"
    ) in text


@pytest.mark.parametrize("last", [0.875, 0.828125])
def test_an_accuracy_that_came_back_or_lost_little_is_none(tmp_path: Path, last: float) -> None:
    curve = [(1, "recon", 1, 0.875), (1, "align", 1, 0.5), (2, "align", 1, last)]
    assert "warning" not in shown(written(tmp_path, curve))


@pytest.mark.parametrize(
    ("clock", "link", "told"),
    [("virtual", "none", True), ("virtual", ["none", "nbiot-field"], False), ("virtual", "nbiot-field", False),
     ("real", "none", False)],
)  # fmt: skip
def test_a_clock_that_nothing_moved_is_told(tmp_path: Path, clock: str, link: object, told: bool) -> None:
    study = load_study("demo", {"clock": clock, "link": link, "training.hidden": [3], "training.latent_dim": 2})
    assert ('link "none" limits nothing' in shown(written(tmp_path, CURVE), study)) == told


def test_a_peak_after_alignment_needs_no_remark(tmp_path: Path) -> None:
    assert "precedes" not in shown(written(tmp_path, [*CURVE, (2, "recon", 2, 1.0)]))


def test_a_lost_message_is_told_with_both_figures(tmp_path: Path) -> None:
    assert "ledgers: upload up: 200 B sent, 100 B received" in shown(written(tmp_path, CURVE, lost=True))


def rows(folder: Path, **columns: object) -> list[str]:
    """Return the lines of the summary as a pipe of 80 columns gets it."""
    console = Console(file=io.StringIO(), width=80, **columns)  # type: ignore[arg-type]
    show_summary(folder, STUDY, 4, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_pipe_gets_aligned_lines_with_the_peak_where_it_fell(tmp_path: Path) -> None:
    lines = [line.rstrip() for line in rows(written(tmp_path, CURVE))]
    assert lines[1:5] == [
        "round  after    devices  accuracy    AUROC  avg. precision",
        "    1  recon 1        1   75.00 %  75.00 %               -  peak",
        "    1  align 1        1   50.00 %  50.00 %               -",
        "    2  align 1        1   62.50 %  62.50 %               -",
    ]
    assert "payload: tensors alone              48 B    16 B    64 B" in lines


@pytest.mark.parametrize("terminal", [True, False])
def test_the_summary_fits_80_columns(tmp_path: Path, terminal: bool) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    lines = rows(
        written(folder, [(1, "recon", 100, 1.0), *CURVE], lost=True), force_terminal=terminal, color_system=None
    )
    assert max(map(len, lines[:-1])) <= 80  # the last line is a path, which must stay whole
    assert ("┃" in "".join(lines)) == terminal
    assert lines[-1] == f"study: {folder}"


def test_only_the_papers_instants_can_be_the_peak(tmp_path: Path) -> None:
    """GCA's are the reconstruction epochs. That an alignment did better is said beside it."""
    curve = [(1, "recon", 1, 0.5), (1, "align", 1, 1.0), (1, "align", 2, 0.625), (2, "recon", 1, 0.625)]
    result = result_json(written(tmp_path, curve))
    assert (result["peak_accuracy"], result["peak"]) == (0.625, {"round": 2, "phase": "recon", "epoch": 1})
    assert (
        "among all instants the highest is 100.00 % after epoch 1 of phase align in round 1, where the paper does not "
        "look for this method's peak"
    ) in shown(tmp_path)


def test_the_peak_of_a_shared_model_is_one_of_its_aggregates(tmp_path: Path) -> None:
    curve = [(1, "recon", 1, 1.0), (1, "global", 1, 0.5), (2, "recon", 1, 0.75), (2, "global", 1, 0.625)]
    written(tmp_path, curve, method="fedavg")
    result = result_json(tmp_path)
    assert (result["peak_accuracy"], result["peak"]) == (0.625, {"round": 2, "phase": "global", "epoch": 1})
    text = shown(tmp_path)
    assert "peak accuracy 62.50 % of the aggregate of round 2;" in text
    assert "the highest is 100.00 % after epoch 1 of phase recon in round 1" in text and "precedes" not in text


def test_training_alone_is_judged_once_a_round_and_set_beside_what_sharing_costs(tmp_path: Path) -> None:
    """One device sending and getting P = 48 floats in two rounds: 384 B each way."""
    curve = [(1, "recon", 1, 0.75), (1, "recon", 2, 0.5), (2, "recon", 1, 0.25), (2, "recon", 2, 0.625)]
    written(tmp_path, curve, method="single")
    assert result_json(tmp_path)["peak"] == {"round": 2, "phase": "recon", "epoch": 2}
    study = load_study("demo", {"devices": 1, "method": "single", "training.hidden": [3], "training.latent_dim": 2})
    assert "full parameters (P = 48), payload 384 B 384 B 768 B" in shown(tmp_path, study)


def test_a_device_cannot_spoil_the_figures(tmp_path: Path) -> None:
    """Telemetry is a device's own word: rounds that never were, and figures that are none, do not count."""
    written(tmp_path, CURVE)
    with closing(sqlite3.connect(tmp_path / FILE)) as forger, forger:
        row = "INSERT INTO evaluations VALUES (1, ?, 'd1', 'recon', ?, 0.5, 1.0, ?, 0.5, 0.5)"
        forger.execute(row, (2**32, 1, 1.0))
        forger.execute(row, (2, 2, math.inf))
    result = json.loads(json.dumps(result_json(tmp_path), allow_nan=False))
    assert (result["peak_accuracy"], result["final_accuracy"]) == (0.75, 0.625)


def test_uploads_and_remarks_that_matter_are_told(tmp_path: Path) -> None:
    with StudyStore.create(tmp_path) as store:
        run = store.begin_run(RunPlan("demo", "00000000", "gca", 100, 2), 2, "breast_cancer")
        store.record_round(run, RoundRecord(1, 0, 1, 2, None, ("d1",), ("d2",), (), ("d3",), {}, {"late": 1}))
        late = {"outcome": "late", "spent_s": {}, "tallies": (), "ignored": {}, "state_sha256": ""}
        one = Evaluation(
            phase="recon", epoch=1, loss=0.5, threshold=1.0, accuracy=0.5, auroc=0.5, average_precision=0.5
        )
        store.record_telemetry(
            run,
            Telemetry(run="demo.00000000", round=1, device="d2", seq=1, evaluations=(one,), **late),  # type: ignore[arg-type]
        )
        for k in range(7):
            store.note(run, 1, None, "note", f"round 1: K reduced from 10 to {k}\x1b[2J[/red]")
        store.note(run, 0, None, "note", "waiting: have 0, need 2")
        store.finish(run, Outcome(False, 1, 3.0, "[/b] too few uploads"), 4.0, None)
    text = shown(tmp_path)
    assert "uploads: 1 of 3 accepted, 1 late, 1 missing events: late 1, reported_late 1" in text
    assert "round 1: K reduced from 10 to 0?[2J[/red]" in text and "to 5" not in text
    assert "and 2 more remarks" in text and "waiting" not in text
    assert "the run did not complete: [/b] too few uploads" in text
    assert "the peak is a mean over 1 of 2 devices" in text
    # 3 uploads were called for, of 4 * 48 bytes each; the study's one device downloads one aggregate.
    assert "full parameters (P = 48), payload 576 B 192 B 768 B" in text


def test_a_folders_name_is_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "a[" / "b]"
    folder.mkdir(parents=True)
    assert f"study: {folder}" in shown(written(folder, CURVE))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (12_340, "12.3 kB"),
        (999_400, "999 kB"), (999_600, "1 MB"), (1_000_000, "1 MB"), (4.2e9, "4.2 GB"), (999.9e9, "1000 GB"),
        (5e12, "5000 GB"),
    ],
)  # fmt: skip
def test_bytes_as_people_read_them(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (119.9, "119.9 s"), (120, "2.0 min"), (7199, "120.0 min"), (7200, "2.0 h"), (172_799, "48.0 h"),
     (172_800, "2.0 days")],
)  # fmt: skip
def test_durations_as_people_read_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
