"""Grids that really run: found again, gone on with, and not stopped by one cell."""

import csv
import fcntl
import io
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from broker_server.study.store import StudyStore
from edge_client.errors import EnvironmentFault
from sim.costs.energy import Energy
from sim.emulation.study import run_study
from sim.grid import rows
from sim.grid.cells import Cell, cells, folder
from sim.grid.rows import check_writable, row, show, write_csv
from sim.grid.runner import UNFINISHED, Done, is_complete, run_cells
from sim.screen.progress import Quiet
from sim.screen.units import duration_text

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

    text = text_of(found, 100)
    assert "not reached" in text and "gca" in text and "energy marked >= lacks" in text

    (broken,) = (end for end in ends.values() if end.failure)
    text = text_of([row(broken, [1.0])], 40)
    assert text.count("failed: as configured: ") == 1 and str(broken.failure) in text  # in full, however narrow it is
    assert "depend on it" not in text  # a board's name says how fast it is

    write_csv(tmp_path / "rows.csv", found, [0.01, 1.0])
    lines = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [line["method"] for line in lines] == ["gca", "fedavg"]
    assert lines[0]["round_to_1"] == "" and lines[0]["round_to_0.01"] == "1"
    assert float(lines[0]["upload_seconds_p50"]) <= float(lines[0]["upload_seconds_p99"])
    for line, one in zip(lines, found, strict=True):
        with StudyStore.open(ends[one.cell.name].directory) as store:
            ((clock,),) = store.rows("SELECT seconds_clock FROM runs")
        assert float(line["seconds_clock"]) == one.seconds_clock == clock > one.whole.seconds
        assert duration_text(clock) in text_of(found, 100)
    assert lines[0]["straggler_participation"] == "1.0" and lines[0]["late_bytes"] == "0"


def text_of(found: Sequence[rows.Row], width: int) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    show(found, [0.01, 1.0], console)
    return console.export_text()


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_number_is_cut_on_a_narrow_terminal(ran, width: int) -> None:
    """What a wide terminal shows of each cell stands in full on a narrow one too."""
    _, ends, _ = ran
    found = [row(ends[cell.name], [0.01, 1.0]) for cell in grid(method=("gca", "fedavg"))]
    text = text_of(found, width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert figures(text_of(found, 1000)) <= figures(text)


def figures(text: str) -> set[str]:
    return {word.rstrip(";") for word in text.split() if any(map(str.isdigit, word))}


def test_times_of_this_machine_are_said_to_be(ran, tmp_path: Path) -> None:
    here, board = grid(method=("single",), hardware=("host", "pi-zero-2-w"))
    ends = run_cells([here, board], tmp_path, jobs=1)
    assert 'hardware "host": devices train as fast as this machine' in text_of([row(ends[here.name], [])], 200)
    assert '"host"' not in text_of([row(ends[board.name], [])], 200)


def test_a_dataset_that_is_not_here_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a grid over it and one that is; where there is nothing else, the grid does not begin."""
    monkeypatch.delenv("GCA_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")  # nothing listens there
    told: list[str] = []
    wanted = grid(dataset=("magic", "breast_cancer"), method=("single",), seed=(1, 2))
    ends = run_cells(wanted, tmp_path / "grid", jobs=1, tell=told.append)
    assert sum("magic04.data" in line for line in told) == 1 and told[0].startswith("2 studies of magic cannot run: ")
    assert [end.failure is None for end in (ends[cell.name] for cell in wanted)] == [False, False, True, True]
    text = text_of([row(ends[cell.name], []) for cell in wanted], 200)
    assert text.count("cannot fetch") == text.count("and 1 more: cannot fetch magic04.data") == 1
    with pytest.raises(EnvironmentFault, match="cannot fetch magic04"):
        run_cells(grid(dataset=("magic",), method=("single",)), tmp_path / "other", jobs=1, tell=told.append)
    assert len(told) == 3


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
