"""A comparison for people (a table per published one) and for machines (one CSV for each)."""

import csv
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from edge_client.words import counted
from sim import narrow
from sim.reproduction.published import EXTRACTION, TITLES
from sim.reproduction.verdict import Compared, orders
from sim.words import told_once

ACCURACY_CAPTION = (
    "accuracy in percent, mean±standard deviation over seeds; difference in percentage points; at ends: the best round "
    "end, the instants that all methods share"
)
EXTRACTION_CAPTION = "mean±standard deviation over seeds, the server's attack on the first device"
INSTANTS = ("at ends", "final", "peaks fell at")
WORDS = {"dataset", "row", "verdict", "peaks fell at"}
COLUMNS = (
    "table", "dataset", "row", "published_mean", "published_std", "ours_mean", "ours_std",
    "difference", "verdict", "seeds", "cut", "peaks_at", "peaks_before_alignment", "final_mean_pct",
    "round_end_peak_mean_pct", "any_instant_peak_mean_pct", "auroc_final_mean", "average_precision_final_mean",
    "seconds_wall", "failure",
)  # fmt: skip


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
            *((_mean(one, "at_round_end", "{:.2f}"), _mean(one, "final", "{:.2f}"), _where(one)) if judged else ()),
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
            figure = one.figure
            writer.writerow(
                [figure.table, figure.dataset, figure.label, figure.mean, figure.std, _number(one.mean),
                 _number(one.std), _number(one.difference), one.verdict, len(one.taken), one.cut, _where(one),
                 sum(taken.early for taken in one.taken), _mean(one, "final", "{:.4f}"),
                 _mean(one, "at_round_end", "{:.4f}"), _mean(one, "anywhere", "{:.4f}"), _mean(one, "auroc", "{:.6f}"),
                 _mean(one, "average_precision", "{:.6f}"), f"{sum(taken.seconds_wall for taken in one.taken):.1f}",
                 one.failure]
            )  # fmt: skip


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
