"""A study stopped at any instant goes on and ends as the one that nobody stopped.

In virtual time the instants can be chosen: before each call by which a run writes something down, its folder is copied,
which is what a kill at that instant would have left of it.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from resume.stopped import QUIET, at_each_call, outcome, rows, small, snapshot

from edge_client.errors import EnvironmentFault, GcaError
from sim.emulation.study import resume_study, run_study

RESUMED = "SELECT detail FROM events WHERE detail LIKE 'resumed%' ORDER BY rowid"


class Stopped:
    """A study that ran through, and copies of it from each instant."""

    def __init__(self, place: Path, **changes: Any) -> None:
        self.copies: list[Path] = []
        self.folder = place / "whole" / "run"
        self.folder.mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch:
            at_each_call(patch, lambda n: self.copies.append(snapshot(self.folder, place / f"killed-{n}")))
            run_study(small(place, **changes), self.folder, QUIET)
        self.expected = outcome(self.folder)


def copying(folder: Path, place: Path, instant: int) -> Callable[[int], None]:
    """Return what copies a study at this call of the journal."""

    def act(n: int) -> None:
        if n == instant:
            snapshot(folder, place)

    return act


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    yield Stopped(tmp_path_factory.mktemp("gca"))


def test_the_undisturbed_study_is_what_the_others_are_held_against(stopped: Stopped) -> None:
    assert stopped.expected["state"][0][0] == 1 and stopped.expected["state"][0][1]
    assert len(stopped.expected["evaluations"]) == 5 * 3 * 2 and len(stopped.expected["fates"]) == 5 * 3
    assert stopped.expected["left"] == ["models", "rounds", "shards"]  # and no states, which are of no use any more


def test_killed_at_any_instant(stopped: Stopped) -> None:
    """At every third call of the journal."""
    wheres = set()
    for copy in stopped.copies[::3]:
        resume_study(copy, QUIET)
        assert outcome(copy) == stopped.expected, copy
        ((where,),) = rows(copy, RESUMED)
        wheres.add(where)
    assert wheres == {
        "resumed: the study begins anew: no round was whole",
        "resumed: the study goes on after round 2",
        "resumed: the study goes on after round 4",
    }


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_while_it_goes_on(tmp_path: Path, stopped: Stopped, seed: int) -> None:
    chance, folder = random.Random(seed), tmp_path / "run"
    for life in range(3):
        copy, instant = tmp_path / str(life), chance.randrange(20, 40)
        with pytest.MonkeyPatch.context() as patch:
            at_each_call(patch, copying(folder, copy, instant))
            if life == 0:
                folder.mkdir()
                run_study(small(tmp_path), folder, QUIET)
            else:
                resume_study(folder, QUIET)
        folder = copy / "run" if (copy / "run").exists() else folder  # else it was at its end before
    resume_study(folder, QUIET)
    assert outcome(folder) == stopped.expected


METHODS: list[dict[str, Any]] = [
    {"clustering.warm_start": True, "training.optimizer": "reset", "participation.fraction": 0.67},
    {"method": "fedavg", "participation.fraction": 0.67},
    {"method": "fedprox", "training.upload_codec": "float16", "training.broadcast_codec": "float16"},
    {"method": "dp_fedavg", "isolation": "task", "clock": "real", "checkpoint_every": 1, "link": "none"},
    {"method": "single"},
    {"method": "centralized"},
]


@pytest.mark.parametrize("changes", METHODS, ids=lambda changes: "-".join(str(value) for value in changes.values()))
def test_each_method_goes_on(tmp_path: Path, changes: dict[str, Any]) -> None:
    """What is kept between rounds differs: Adam or not, the common model, the centroids to begin from."""
    run = Stopped(tmp_path, **changes)
    for copy in run.copies[len(run.copies) // 2 :: max(1, len(run.copies) // 4)]:
        resume_study(copy, QUIET)
        assert outcome(copy) == run.expected
        assert "goes on after round" in rows(copy, RESUMED)[0][0]


@pytest.mark.parametrize("instant", [10, 39, 55])
def test_a_run_that_failed_goes_on_too(tmp_path: Path, stopped: Stopped, instant: int) -> None:
    """The disk was full for a while: the run says so, its devices are told, and nothing of the broken round counts."""
    folder = tmp_path / "run"

    def fail(n: int) -> None:
        if n == instant:
            raise EnvironmentFault("study.sqlite: the disk is full")

    with pytest.MonkeyPatch.context() as patch:
        at_each_call(patch, fail)
        with pytest.raises(GcaError, match="the disk is full"):
            run_study(small(tmp_path), folder, QUIET)
    ((completed, reason),) = rows(folder, "SELECT completed, reason FROM runs")
    assert not completed and reason.endswith("study.sqlite: the disk is full")
    resume_study(folder, QUIET)
    assert outcome(folder) == stopped.expected


def test_the_clock_of_a_run_goes_on(stopped: Stopped, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        at_each_call(patch, copying(folder, tmp_path / "copy", 50))
        run_study(small(tmp_path), folder, QUIET)
    resume_study(tmp_path / "copy" / "run", QUIET)
    (begun, whole), (again, resumed) = (
        rows(place, "SELECT max(opened_s), (SELECT seconds_clock FROM runs) FROM rounds")[0]
        for place in (folder, tmp_path / "copy" / "run")
    )
    times = rows(tmp_path / "copy" / "run", "SELECT opened_s, closed_s, published_s FROM rounds ORDER BY round")
    flat = [moment for row in times for moment in row]
    assert flat == sorted(flat)
    assert whole <= resumed < 2 * whole and begun <= again  # joining again takes a moment
