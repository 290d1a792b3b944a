"""Tables where there is no room for them: no number is ever cut off."""

import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from sim.screen.narrow import show

CELLS = (("gca", "nbiot-nb1-peak", "92.98", "1.23 MB"), ("fedavg", "lte-m-hd-peak", "88.10", "345 kB"),
         ("single", "lte-m-hd-peak", "not reached"))  # fmt: skip


def shown(width: int) -> str:
    table = Table(title="Whole runs", box=None, pad_edge=False)
    for name in ("method", "link", "peak", "wire"):
        table.add_column(name, no_wrap=True)
    for row in CELLS:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=width)
    show(table, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_table_that_fits_is_a_table() -> None:
    lines = [line.split("  ")[0].strip() for line in shown(60).splitlines()]
    assert lines[1:] == ["method", "gca", "fedavg", "single"]


@pytest.mark.parametrize("width", [24, 30, 36])
def test_a_row_that_does_not_fit_is_told_whole(width: int) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    flat = re.sub(r"\s+", " ", text)
    assert "method gca; link nbiot-nb1-peak; peak 92.98; wire 1.23 MB" in flat
    assert "method fedavg; link lte-m-hd-peak; peak 88.10; wire 345 kB" in flat
    assert "method single; link lte-m-hd-peak; not reached" in flat
