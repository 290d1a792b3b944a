"""Runs the cells of a grid that are not there yet, several at a time, each in a process of its own.

Processes, because a study may set the process up for itself (threads, clock, descriptors), and because one that
dies takes no other with it. A cell is written beside its place and moved there when its run has completed, so that
what is in place is whole; one that was interrupted goes on where it was.
"""

import multiprocessing
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from broker_server.study import results
from broker_server.study.store import StudyStore
from edge_client.errors import EnvironmentFault, GcaError
from edge_client.words import counted
from sim.data.dataset import require
from sim.emulation.child import die_with_parent_beside
from sim.emulation.resume import has_begun
from sim.fleet.recording import identity
from sim.grid.cells import Cell, folder
from sim.studies import STUDY, alone

UNFINISHED = ".unfinished"
"""Ending of the folder that a cell's run writes to."""


@dataclass(frozen=True)
class Done:
    """One cell's end: its folder, or why there is none."""

    cell: Cell
    directory: Path
    failure: str | None = None
    found: bool = False
    """Whether it had been run before."""


def run_cells(cells: Sequence[Cell], directory: Path, *, jobs: int, data_dir: Path | None = None,
              tell: Callable[[str], None] = lambda text: None) -> dict[str, Done]:  # fmt: skip
    """Run what is missing and return every cell's end by its name. A cell that fails does not stop the others.

    Raises `EnvironmentFault` where nothing can run at all: no dataset is here, or the folder cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{directory}: {error.strerror}; give a folder that can be written") from None
    ends: dict[str, Done] = {}
    missing: dict[str, Cell] = {}
    for cell in cells:
        place = folder(cell, directory)
        if is_complete(place):
            ends[cell.name] = Done(cell, place, found=True)
        else:
            missing[cell.name] = cell
    if ends:
        tell(f"{len(ends)} of {counted(len(ends) + len(missing), 'study', 'studies')} there already")
    lacking = _lacking({cell.study.dataset for cell in missing.values()}, data_dir)
    able = [cell for cell in missing.values() if cell.study.dataset not in lacking]
    if lacking and not (ends or able):
        raise EnvironmentFault("; ".join(lacking.values()))
    for dataset, why in lacking.items():
        without = [cell for cell in missing.values() if cell.study.dataset == dataset]
        tell(f"{counted(len(without), 'study', 'studies')} of {dataset} cannot run: {why}")
        ends |= {cell.name: Done(cell, folder(cell, directory), why) for cell in without}
    for number, done in enumerate(_in_turn(able, directory, max(1, jobs), data_dir), start=1):
        ends[done.cell.name] = done
        state = "failed: " + done.failure if done.failure else "done"
        tell(f"{number} of {len(able)}: {done.cell.name} ({done.cell.label}): {state}")
    return ends


def _lacking(datasets: Iterable[str], data_dir: Path | None) -> dict[str, str]:
    """Return why a dataset is not to be had, by its name: found out once, not by every study that needs it."""
    lacking = {}
    for dataset in sorted(datasets):
        try:
            require(dataset, data_dir)
        except EnvironmentFault as error:
            lacking[dataset] = str(error)
    return lacking


def is_complete(directory: Path) -> bool:
    """Whether a study lies there whose last run came to its end."""
    if not (directory / "study.sqlite").exists():
        return False
    try:
        with StudyStore.open(directory) as store:
            return bool(results.last_run(store).completed)
    except GcaError:
        return False


def _in_turn(cells: Sequence[Cell], directory: Path, jobs: int, data_dir: Path | None) -> Iterator[Done]:
    """Yield the cells as they end: of those that share a training the first of the grid, which records it, before all
    others. Else it would be chance whose links decide who takes part."""
    trainings = {cell.name: _training(cell) for cell in cells}
    recorded: set[str] = set()
    while cells:
        first = {trainings[cell.name]: cell for cell in reversed(cells)}
        now = [cell for cell in cells if first[trainings[cell.name]] is cell or trainings[cell.name] in recorded]
        begun = {cell.name for cell in now}
        for done in _run(now, directory, jobs, data_dir):
            if not done.failure:
                recorded.add(trainings[done.cell.name])
            yield done
        cells = [cell for cell in cells if cell.name not in begun]


def _training(cell: Cell) -> str:
    """Return what the cells have in common that may replay each other's training."""
    return identity(cell.study) if cell.study.compute == "replay" else cell.name


def _run(cells: Sequence[Cell], directory: Path, jobs: int, data_dir: Path | None) -> Iterator[Done]:
    """Yield the cells as they end, whatever the order."""
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    pool = ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1, initializer=_begin)
    with pool:
        waiting: dict[Future[str | None], Cell] = {}
        rest = iter(cells)
        while True:
            while len(waiting) < jobs and (cell := next(rest, None)) is not None:
                waiting[pool.submit(_run_one, cell, folder(cell, directory), data_dir)] = cell
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                cell = waiting.pop(future)
                try:
                    failure = future.result()
                except BrokenProcessPool as error:
                    raise GcaError(f"the process of {cell.name} died ({error}); run the grid again to go on") from None
                yield Done(cell, folder(cell, directory), failure)


def _begin() -> None:
    """End with the parent, and by Ctrl-C at once and without a word: the parent has it, too."""
    die_with_parent_beside()
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))


def _run_one(cell: Cell, place: Path, data_dir: Path | None) -> str | None:
    """Run one cell in this process; return why it failed, or None."""
    from sim.emulation.study import resume_study, run_study
    from sim.screen.progress import Quiet

    unfinished = place.with_name(place.name + UNFINISHED)
    try:
        unfinished.mkdir(exist_ok=True)
        with alone(unfinished, by=unfinished):
            if _has_begun(unfinished):
                resume_study(unfinished, Quiet(), data_dir)
            else:
                _empty(unfinished)
                run_study(cell.study, unfinished, Quiet(), data_dir)
            shutil.rmtree(place, ignore_errors=True)
            unfinished.rename(place)
    except GcaError as error:
        return str(error)
    except Exception as error:  # told with its cause: the grid goes on without this cell
        (unfinished / "traceback.txt").write_text(traceback.format_exc())
        return f"{type(error).__name__}: {error}; see {unfinished / 'traceback.txt'}"
    return None


def _has_begun(directory: Path) -> bool:
    """Whether an interrupted run lies there that can go on; what is damaged is run anew."""
    try:
        return (directory / STUDY).exists() and has_begun(directory)
    except GcaError:
        return False


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
