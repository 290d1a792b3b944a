"""Grids that really run: found again, gone on with, and not stopped by one cell."""

import csv
import fcntl
import os
from pathlib import Path

import pytest
from rich.console import Console

from broker_server.store import StudyStore
from edge_client.errors import EnvironmentFault
from sim.emulation.study import run_study
from sim.energy import Energy
from sim.grid import rows
from sim.grid.cells import Cell, cells, folder
from sim.grid.rows import check_writable, row, show, write_csv
from sim.grid.runner import UNFINISHED, Done, is_complete, run_cells
from sim.progress import Quiet

SMALL = {"devices": 2, "rounds": 1, "clock": "virtual", "hardware": "pi-zero-2-w", "training.hidden": [8]}


def grid(**over: tuple[object, ...]) -> list[Cell]:
    return cells("demo", SMALL, {key.replace("__", "."): values for key, values in over.items()})


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Done], list[str]]:
    """Two methods, and a third cell that no machine can run: more devices than there are records."""
    directory = tmp_path_factory.mktemp("grid")
    told: list[str] = []
    wanted = [*grid(method=("gca", "fedavg")), *cells("demo", {**SMALL, "devices": 300}, {})]
    return directory, run_cells(wanted, directory, jobs=2, tell=told.append), told


def test_every_cell_has_its_study_and_a_failure_stops_no_other(ran) -> None:
    _, ends, told = ran
    good = [end for end in ends.values() if not end.failure]
    assert len(ends) == 3 and len(good) == 2 and all(is_complete(end.directory) for end in good)
    (bad,) = (end for end in ends.values() if end.failure)
    assert "300" in bad.failure and not is_complete(bad.directory)
    assert sum("failed" in line for line in told) == 1


def test_what_is_there_is_not_run_again(ran) -> None:
    directory, _, _ = ran
    wanted = grid(method=("gca", "fedavg"))
    before = [(folder(cell, directory) / "study.sqlite").stat().st_mtime_ns for cell in wanted]
    again = run_cells(wanted, directory, jobs=1)
    assert all(end.found for end in again.values())
    assert before == [(folder(cell, directory) / "study.sqlite").stat().st_mtime_ns for cell in wanted]


def test_rows_say_what_each_cost_to_get_there(ran, tmp_path: Path) -> None:
    _, ends, _ = ran
    found = [row(ends[cell.name], [0.01, 1.0]) for cell in grid(method=("gca", "fedavg"))]
    gca, fedavg = found
    assert gca.whole and fedavg.whole
    # d_x = 9 columns are left, the demo's d_z is 4: P = 10 * 8 + 9 * 4 + 5 * 8 + 9 * 9, two devices, two ways, 4 bytes
    assert fedavg.whole.payload_bytes == 2 * 2 * 4 * (80 + 36 + 40 + 81)
    assert gca.whole.payload_bytes < fedavg.whole.payload_bytes < fedavg.whole.wire_bytes
    assert gca.reached[1.0] is None
    at = gca.reached[0.01]
    assert at is not None and (at.point.phase, at.point.epoch, at.payload_bytes) == ("recon", 1, 0)
    assert gca.whole.energy is not None and gca.whole.energy.unknown == ("tail",)

    console = Console(record=True, width=100)
    show(found, [0.01, 1.0], console)
    text = console.export_text()
    assert "not reached" in text and "gca" in text and "energy marked >= lacks" in text

    (broken,) = (end for end in ends.values() if end.failure)
    console = Console(record=True, width=40)
    show([row(broken, [1.0])], [1.0], console)
    text = console.export_text()
    assert text.count("failed: as configured: ") == 1 and str(broken.failure) in text  # in full, however narrow it is

    write_csv(tmp_path / "rows.csv", found, [0.01, 1.0])
    lines = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [line["method"] for line in lines] == ["gca", "fedavg"]
    assert lines[0]["round_to_1"] == "" and lines[0]["round_to_0.01"] == "1"
    assert float(lines[0]["upload_seconds_p50"]) <= float(lines[0]["upload_seconds_p99"])
    assert lines[0]["straggler_participation"] == "1.0" and lines[0]["late_bytes"] == "0"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"compute": 0.0, "tail": None}, "unknown"), ({"compute": None}, "unknown"), ({"compute": 0.0}, "0 J"),
        ({"compute": 1.5, "tail": None}, ">= 1.5 J"), ({"compute": 1.5}, "1.5 J"),
    ],
)  # fmt: skip
def test_a_bound_of_zero_joules_is_none(parts: dict[str, float | None], told: str) -> None:
    assert rows._joules(Energy(parts)) == told


def test_a_csv_that_cannot_be_written_is_refused_and_one_that_can_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="--csv"):
        check_writable(tmp_path / "nowhere" / "rows.csv")
    (tmp_path / "rows.csv").write_text("of yesterday")
    check_writable(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == "of yesterday"


def test_what_a_killed_run_left_behind_is_run_anew(tmp_path: Path) -> None:
    (cell,) = grid(method=("single",))
    left = folder(cell, tmp_path).with_name(cell.name + UNFINISHED)
    (left / "models").mkdir(parents=True)
    (left / "study.sqlite").write_bytes(b"half a page")
    (end,) = run_cells([cell], tmp_path, jobs=1).values()
    assert end.failure is None and is_complete(end.directory) and not left.exists()


def test_an_interrupted_cell_goes_on_where_it_was(tmp_path: Path) -> None:
    class Interrupted(Quiet):
        def round_opened(self, round: int, devices: int) -> None:
            if round == 3:
                raise OSError("stopped")

    (cell,) = grid(method=("gca",), rounds=(3,), checkpoint_every=(1,))
    left = folder(cell, tmp_path).with_name(cell.name + UNFINISHED)
    with pytest.raises(OSError, match="stopped"):
        run_study(cell.study, left, Interrupted())
    (end,) = run_cells([cell], tmp_path, jobs=1).values()
    assert end.failure is None and not left.exists()
    resumed = "SELECT count(*) FROM events WHERE detail LIKE 'resumed: the study goes on after round _'"
    with StudyStore.open(end.directory) as store:
        assert store.rows(resumed) == [(1,)]
        assert store.rows("SELECT round FROM rounds") == [(1,), (2,), (3,)]


def test_a_cell_that_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    (cell,) = grid(method=("single",))
    left = folder(cell, tmp_path).with_name(cell.name + UNFINISHED)
    left.mkdir()
    handle = os.open(left, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        (end,) = run_cells([cell], tmp_path, jobs=1).values()
    finally:
        os.close(handle)
    assert end.failure and "another process runs this study" in end.failure
