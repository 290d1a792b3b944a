"""A grid's results: one row per cell, for people and as CSV."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker_server import results
from broker_server.store import StudyStore
from sim.costs import Instant, first_to_reach, instants
from sim.grid.cells import Cell
from sim.grid.runner import Done
from sim.summary import judged
from sim.units import bytes_text, duration_text


@dataclass(frozen=True)
class Row:
    """One cell: its best and last accuracy, what the whole run cost, and what it had cost when it first reached each
    target (None: not reached)."""

    cell: Cell
    peak: float | None = None
    final: float | None = None
    auroc: float | None = None
    whole: Instant | None = None
    reached: Mapping[float, Instant | None] = field(default_factory=dict)
    late: int = 0
    missing: int = 0
    failure: str = ""


def row(done: Done, targets: Sequence[float]) -> Row:
    """Read a cell's study."""
    if done.failure:
        return Row(done.cell, failure=done.failure)
    with StudyStore.open(done.directory) as store:
        run = results.last_run(store)
        found = instants(store, run.run)
        best = results.peak(judged([one.point for one in found], run.method))
        fates = dict(store.rows("SELECT fate, count(*) FROM participants WHERE run = ? GROUP BY fate", run.run))
        last = found[-1] if found else None
        return Row(
            done.cell, best.accuracy if best else None, last.point.accuracy if last else None,
            last.point.auroc if last else None, last,
            {target: first_to_reach(found, target) for target in targets},
            int(fates.get("late", 0)), int(fates.get("missing", 0)) + int(fates.get("rejected", 0)),
        )  # fmt: skip


def show(rows: Sequence[Row], targets: Sequence[float], console: Console) -> None:
    """Print the grid; `not reached` is an answer."""
    keys = list(rows[0].cell.varied) if rows else []
    page = Table(title="Bytes over all devices, both directions, on the wire; seconds on the run's clock",
                 title_justify="left")  # fmt: skip
    for key in keys or ["study"]:
        page.add_column(key.rsplit(".", 1)[-1])
    for name in ("peak", "final", "AUROC", "payload", "wire", "time", "late", "lost"):
        page.add_column(name, justify="right")
    for target in targets:
        page.add_column(f"to {100 * target:g} %", justify="right")
    for one in rows:
        varied = [str(value) for value in one.cell.varied.values()] or [one.cell.name]
        if one.failure or one.whole is None:
            page.add_row(*varied, one.failure or "no evaluation")
            continue
        page.add_row(
            *varied, _share(one.peak), _share(one.final), "-" if one.auroc is None else f"{one.auroc:.3f}",
            bytes_text(one.whole.payload_bytes), bytes_text(one.whole.wire_bytes), duration_text(one.whole.seconds),
            str(one.late), str(one.missing), *(_reached(one.reached[target]) for target in targets),
        )  # fmt: skip
    console.print(page)


def write_csv(path: Path, rows: Sequence[Row], targets: Sequence[float]) -> None:
    """Write one line per cell; an empty field is "not reached" or "unknown"."""
    keys = list(rows[0].cell.varied) if rows else []
    spent = ("payload_bytes", "message_bytes", "wire_bytes", "seconds", "joules")
    header = [*keys, "study", "peak_accuracy", "final_accuracy", "auroc", *spent, "late", "lost"]
    header += [f"{name}_to_{target:g}" for target in targets for name in ("round", *spent)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "failure"])
        for one in rows:
            line = [*one.cell.varied.values(), one.cell.name, one.peak, one.final, one.auroc]
            line += [*(getattr(one.whole, name, None) for name in spent), one.late, one.missing]
            for target in targets:
                at = one.reached.get(target)
                line += [at and at.point.round, *(getattr(at, name, None) for name in spent)]
            writer.writerow(["" if value is None else value for value in line] + [one.failure])


def _reached(at: Instant | None) -> str:
    if at is None:
        return "not reached"
    return f"{bytes_text(at.wire_bytes)}, {duration_text(at.seconds)}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
