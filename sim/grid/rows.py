"""A grid's results: one row per cell, for people and as CSV."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker_server.study import results
from broker_server.study.store import StudyStore
from edge_client.errors import EnvironmentFault
from sim.config.devices import several
from sim.config.hardware import HOST
from sim.costs.energy import Energy, powers
from sim.costs.spent import Instant, first_to_reach, instants
from sim.costs.stragglers import (
    QUANTILES,
    Quantiles,
    Stragglers,
    Waste,
    round_quantiles,
    stage_quantiles,
    stragglers,
    waste,
)
from sim.grid.cells import Cell
from sim.grid.runner import Done
from sim.screen import narrow
from sim.screen.summary import judged
from sim.screen.units import bytes_text, duration_text, share_text
from sim.screen.words import told_once

SLOW = ("participation", "accuracy", "participation_of_all", "accuracy_of_all")
USELESS = ("late", "unused")


@dataclass(frozen=True)
class Row:
    """One cell: its best and last accuracy, what the run had cost by its last evaluation, the seconds on the run's
    clock until it ended, what it had cost when it first reached each target (None: not reached), how long its rounds
    and stages took, and how its slowest devices fared."""

    cell: Cell
    peak: float | None = None
    final: float | None = None
    auroc: float | None = None
    whole: Instant | None = None
    seconds_clock: float | None = None
    reached: Mapping[float, Instant | None] = field(default_factory=dict)
    late: int = 0
    missing: int = 0
    rounds: Quantiles | None = None
    stages: Mapping[str, Quantiles] = field(default_factory=dict)
    stragglers: Stragglers | None = None
    waste: Waste | None = None
    failure: str = ""


def row(done: Done, targets: Sequence[float]) -> Row:
    """Read a cell's study."""
    if done.failure:
        return Row(done.cell, failure=done.failure)
    with StudyStore.open(done.directory) as store:
        run = results.last_run(store)
        found = instants(store, run.run, powers(done.cell.study))
        best = results.peak(judged([one.point for one in found], run.method))
        fates = results.fates(store, run.run)
        last = found[-1] if found else None
        return Row(
            done.cell, best.accuracy if best else None, last.point.accuracy if last else None,
            last.point.auroc if last else None, last, run.seconds_clock,
            {target: first_to_reach(found, target) for target in targets},
            fates.get("late", 0), fates.get("missing", 0) + fates.get("rejected", 0),
            round_quantiles(store, run.run), stage_quantiles(store, run.run), stragglers(store, run.run),
            waste(store, run.run),
        )  # fmt: skip


def show(rows: Sequence[Row], targets: Sequence[float], console: Console) -> None:
    """Print the grid: what each whole run cost; below, per target, what it had cost to reach it; last, what failed."""
    keys = list(rows[0].cell.varied) if rows else []
    trouble = any(one.late or one.missing for one in rows)
    columns = ("peak", "final", "payload", "wire", "time", "energy", *(("late", "lost") if trouble else ()))
    title = "Whole runs: accuracies in %; bytes of all devices, both directions; time on the clock, until the run's end"
    page = _page(title, keys, columns)
    for one in rows:
        if one.failure or one.whole is None:
            page.add_row(*_varied(one), "failed" if one.failure else "no evaluation")
            continue
        page.add_row(
            *_varied(one), share_text(one.peak, ""), share_text(one.final, ""), bytes_text(one.whole.payload_bytes),
            *_spent(one.whole, one.seconds_clock),
            *((str(one.late), str(one.missing)) if trouble else ()),
        )  # fmt: skip
    narrow.show(page, console)
    _show_paces(rows, keys, console)
    for target in targets:
        page = _page(f"To {100 * target:g} % (mean over devices, first evaluation that reached it)", keys,
                     ("round", "after", "wire", "time", "energy"))  # fmt: skip
        for one in rows:
            at = one.reached.get(target)
            if at is None:
                page.add_row(*_varied(one), "failed" if one.failure else "not reached")
            else:
                page.add_row(*_varied(one), str(at.point.round), f"{at.point.phase} {at.point.epoch}",
                             *_spent(at, at.seconds))  # fmt: skip
        console.print()
        narrow.show(page, console)
    energies = [one.whole.energy for one in rows if one.whole and one.whole.energy and one.whole.energy.total]
    lacking = sorted({part for energy in energies for part in energy.unknown})
    if lacking:
        console.print(f"energy marked >= lacks what nobody gave a figure for: {', '.join(lacking)}", highlight=False)
    failures = [(one.cell.label, one.failure) for one in rows if one.failure]
    for text in (*_on_this_machine(rows), *told_once(failures)):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _on_this_machine(rows: Sequence[Row]) -> list[str]:
    """Say of times that another machine would give others."""
    hosted = [one for one in rows if one.whole and HOST in several(one.cell.study.hardware)]
    if all(one.cell.study.compute == "synthetic" for one in hosted):
        return []
    mend = "name a board with --set hardware=..., see gca hardware"
    return [f'hardware "{HOST}": devices train as fast as this machine does now, so times depend on it; {mend}']


def _show_paces(rows: Sequence[Row], keys: Sequence[str], console: Console) -> None:
    """Print how long rounds took, and how the slowest devices fared; nothing where no cell has rounds."""
    if not any(one.rounds for one in rows):
        return
    page = _page(
        "Rounds by quantile; of the slowest tenth of the devices the uploads accepted of those asked for, and the "
        "accuracy, in %; message bytes of no use",
        keys, (*(f"p{100 * share:g}" for share in QUANTILES), "slowest: accepted", "accuracy", "useless"),
    )  # fmt: skip
    for one in rows:
        slow, waste = one.stragglers, one.waste
        if one.rounds and slow and waste:
            seconds = map(duration_text, one.rounds)
            useless = bytes_text(waste.unused)
            page.add_row(
                *_varied(one), *seconds, share_text(slow.participation, ""), share_text(slow.accuracy, ""), useless
            )
    console.print()
    narrow.show(page, console)


def _page(title: str, keys: Sequence[str], columns: Sequence[str]) -> Table:
    page = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for key in keys or ["study"]:
        page.add_column(key.rsplit(".", 1)[-1], no_wrap=True)
    for name in columns:
        page.add_column(name, justify="right", no_wrap=True)
    return page


def _varied(one: Row) -> list[str]:
    return [str(value) for value in one.cell.varied.values()] or [one.cell.name]


def _spent(at: Instant, seconds: float | None) -> tuple[str, str, str]:
    return bytes_text(at.wire_bytes), "-" if seconds is None else duration_text(seconds), _joules(at.energy)


def check_writable(path: Path) -> None:
    """Raise `EnvironmentFault` if this file cannot be written, before hours are spent on what shall stand in it."""
    try:
        path.open("a").close()
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror}; give a file that can be written as --csv") from None


def write_csv(path: Path, rows: Sequence[Row], targets: Sequence[float]) -> None:
    """Write one line per cell; an empty field is "not reached" or "unknown".

    `seconds_clock` is the run's clock at its end, as in its summary and its report; `seconds_to_0.8` is the same clock
    when that accuracy was first reached.
    """
    keys = list(rows[0].cell.varied) if rows else []
    counts = ("payload_bytes", "message_bytes", "wire_bytes")
    spent = (*counts, "seconds", "joules")  # joules: of the parts known
    stages = sorted({stage for one in rows for stage in one.stages})
    header = [*keys, "study", "peak_accuracy", "final_accuracy", "auroc", *counts, "seconds_clock", "joules"]
    header += ["late", "lost"]
    header += [f"{what}_seconds_p{100 * share:g}" for what in ("round", *stages) for share in QUANTILES]
    header += [*(f"straggler_{name}" for name in SLOW), *(f"{name}_bytes" for name in USELESS), "repeated_chunks"]
    header += [f"{name}_to_{target:g}" for target in targets for name in ("round", *spent)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "failure"])
        for one in rows:
            line = [*one.cell.varied.values(), one.cell.name, one.peak, one.final, one.auroc]
            line += [*(getattr(one.whole, name, None) for name in counts), one.seconds_clock]
            line += [getattr(one.whole, "joules", None), one.late, one.missing]
            for quantiles in (one.rounds, *(one.stages.get(stage) for stage in stages)):
                line += quantiles or [None] * len(QUANTILES)
            line += [getattr(one.stragglers, name, None) for name in SLOW]
            line += [getattr(one.waste, name, None) for name in (*USELESS, "repeated")]
            for target in targets:
                at = one.reached.get(target)
                line += [at and at.point.round, *(getattr(at, name, None) for name in spent)]
            writer.writerow(["" if value is None else value for value in line] + [one.failure])


def _joules(energy: Energy | None) -> str:
    """Say the energy of all devices; a lower bound where a part is unknown."""
    if energy is None or energy.total is None or (energy.unknown and not energy.known):  # a bound of 0 says nothing
        return "unknown"
    return f"{'>= ' if energy.unknown else ''}{energy.known:.3g} J"
