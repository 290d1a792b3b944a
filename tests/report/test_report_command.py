"""`gca report` as a user meets it: files, notes, and one line for each study that cannot be reported."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from report.report_studies import written

from broker_server.plan import RunPlan
from broker_server.study.store import FILE, StudyStore
from sim.cli.app import run


def _missing(folder: Path) -> None: ...


def _empty_folder(folder: Path) -> None:
    folder.mkdir()


def _a_file(folder: Path) -> None:
    folder.write_text("volts,ok\n")


def _garbage(folder: Path) -> None:
    folder.mkdir()
    (folder / FILE).write_bytes(b"no database at all " * 100)


def _other_version(folder: Path) -> None:
    written(folder)
    with closing(sqlite3.connect(folder / FILE)) as store:
        store.execute("PRAGMA user_version = 99")


def _no_run(folder: Path) -> None:
    folder.mkdir()
    StudyStore.create(folder).close()


def _no_round(folder: Path) -> None:
    folder.mkdir()
    with StudyStore.create(folder) as store:
        store.begin_run(RunPlan("demo", "00000000", "gca", 100, 2), 1, "breast_cancer")


def _damaged_configuration(folder: Path) -> None:
    written(folder, link="none")
    (folder / "study.toml").write_bytes(b"dataset = \xff")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_missing, "holds no study"), (_empty_folder, "holds no study"), (_a_file, "is a file"),
        (_garbage, "not a database"),
        (_other_version, "version 99"), (_no_run, "holds no run"), (_no_round, "no round was finished"),
        (_damaged_configuration, "is damaged"),
    ],
)  # fmt: skip
def test_a_study_that_cannot_be_reported_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], told: str
) -> None:
    spoil(tmp_path / "study")
    assert run(["report", str(tmp_path / "study")]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error: ") and told in err
    assert not (tmp_path / "study" / "report.html").exists()


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = written(tmp_path / "study")
    assert run(["report", str(study), "--output", str(tmp_path / "nowhere" / "page.html")]) == 3
    assert "nowhere" in capsys.readouterr().err


def test_the_page_lies_in_its_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = written(tmp_path / "study", link="none")
    assert run(["report", str(study)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{study / 'report.html'}\n" and err == ""


def test_an_unfinished_study_is_reported_and_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = written(tmp_path / "study", ended=False)
    assert run(["report", str(study)]) == 0
    assert "the run did not complete" in capsys.readouterr().err
    assert "the run did not complete: its program was stopped" in (study / "report.html").read_text()


def test_what_must_not_be_hidden_is_on_the_page(tmp_path: Path) -> None:
    study = written(tmp_path / "study", link="nbiot-nb1-peak", note="K reduced from 4 to 3")
    worse = written(tmp_path / "worse", link="none", devices={"d1": (0.5,) * 4})
    assert run(["report", str(study), str(worse), "--output", str(tmp_path / "both.html")]) == 0
    text = (tmp_path / "both.html").read_text()
    for told in ("a peak is chosen by looking at the test set", "ledgers: bytes sent = bytes received",
                 "K reduced from 4 to 3", ">not reached<", "62,000 bit/s"):  # fmt: skip
        assert told in text, told


def test_without_a_test_set_there_is_no_curve(tmp_path: Path) -> None:
    study = written(tmp_path / "study", devices={"d1": (), "d2": ()}, curve=())
    assert run(["report", str(study)]) == 0
    text = (study / "report.html").read_text()
    assert "no evaluation: the devices had no test set" in text and "figure-accuracy" not in text
