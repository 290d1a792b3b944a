"""A comparison for people (a table per published one) and for machines (one CSV for each)."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from edge_client.words import counted
from sim.reproduction.published import EXTRACTION, TITLES
from sim.reproduction.verdict import Compared, orders
from sim.screen import narrow
from sim.screen.words import told_once

ACCURACY_CAPTION = (
    "accuracy in percent, mean±standard deviation over seeds; difference in percentage points; at ends: the best round "
    "end, the instants that all methods share; locally: the best end of local training, before models are averaged"
)
EXTRACTION_CAPTION = "mean±standard deviation over seeds, the server's attack on the first device"
INSTANTS = ("at ends", "locally", "final", "peaks fell at")
WORDS = {"dataset", "row", "verdict", "peaks fell at"}


def show(table: str, compared: Sequence[Compared], console: Console) -> None:
    """Print one table, its order claims, and what must not be hidden."""
    page = Table(
        title=f"{table}: {TITLES[table]}", title_justify="left", caption_justify="left", box=None, pad_edge=False
    )
    judged = table not in EXTRACTION  # an accuracy, which belongs to one instant among others
    page.caption = ACCURACY_CAPTION if judged else EXTRACTION_CAPTION
    for name in ("dataset", "row", "published", "ours", "diff.", "verdict", *(INSTANTS if judged else ())):
        page.add_column(name, justify="left" if name in WORDS else "right", no_wrap=name != "peaks fell at")
    for one in compared:
        figure = one.figure
        page.add_row(
            figure.dataset, figure.label, f"{figure.mean:.2f}±{figure.std:.2f}", _ours(one),
            "-" if one.difference is None else f"{one.difference:+.2f}", one.verdict,
            *((*(_mean(one, name, "{:.2f}") or "-" for name in ("at_round_end", "locally", "final")), _where(one))
              if judged else ()),
        )  # fmt: skip
    narrow.show(page, console)
    figures = counted(len(compared), "figure")
    for cut in sorted({one.cut for one in compared if one.cut}):
        count = sum(one.cut == cut for one in compared)
        console.print(
            f"cut down: {cut} ({count} of {counted(len(compared), 'figure')} of ours)", markup=False, highlight=False
        )
    for reference in ("gca", "inverse"):
        for order in orders(compared, reference):
            console.print(order.text, highlight=False)
    early = sum(any(taken.early for taken in one.taken) for one in compared)
    if early:
        console.print(
            f"{early} of {figures} of ours: the peak fell in the reconstruction of round 1, before "
            "any centroid had been exchanged; the published ones cannot be told apart from that",
            highlight=False,
        )
    failures = [(f"{one.figure.dataset} {one.figure.label}", one.failure) for one in compared if one.failure]
    for text in told_once(failures):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def write_csv(path: Path, compared: Sequence[Compared]) -> None:
    """Write one row per published figure."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for one in compared:
            writer.writerow([column(one) for column in COLUMNS.values()])


def _ours(one: Compared) -> str:
    if one.mean is None:
        return "-"
    return f"{one.mean:.2f}" if one.std is None else f"{one.mean:.2f}±{one.std:.2f}"


def _where(one: Compared) -> str:
    """Where each seed's figure fell: round, phase and epoch."""
    return " ".join(taken.where for taken in one.taken)


def _mean(one: Compared, name: str, form: str) -> str:
    values = [value for taken in one.taken if (value := getattr(taken, name)) is not None]
    return form.format(sum(values) / len(values)) if values else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


COLUMNS: dict[str, Callable[[Compared], object]] = {
    "table": lambda one: one.figure.table,
    "dataset": lambda one: one.figure.dataset,
    "row": lambda one: one.figure.label,
    "published_mean": lambda one: one.figure.mean,
    "published_std": lambda one: one.figure.std,
    "ours_mean": lambda one: _number(one.mean),
    "ours_std": lambda one: _number(one.std),
    "difference": lambda one: _number(one.difference),
    "verdict": lambda one: one.verdict,
    "seeds": lambda one: len(one.taken),
    "cut": lambda one: one.cut,
    "peaks_at": _where,
    "peaks_before_alignment": lambda one: sum(taken.early for taken in one.taken),
    "final_mean_pct": lambda one: _mean(one, "final", "{:.4f}"),
    "round_end_peak_mean_pct": lambda one: _mean(one, "at_round_end", "{:.4f}"),
    "any_instant_peak_mean_pct": lambda one: _mean(one, "anywhere", "{:.4f}"),
    "local_end_peak_mean_pct": lambda one: _mean(one, "locally", "{:.4f}"),
    "auroc_final_mean": lambda one: _mean(one, "auroc", "{:.6f}"),
    "average_precision_final_mean": lambda one: _mean(one, "average_precision", "{:.6f}"),
    "seconds_wall": lambda one: f"{sum(taken.seconds_wall for taken in one.taken):.1f}",
    "failure": lambda one: one.failure,
}
"""Of the CSV."""
