"""Tables on terminals too narrow for them: then each row is told in words, because a number that is cut off lies."""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

ANY_WIDTH = 100_000


def show(table: Table, console: Console) -> None:
    """Print a table; where not even its unbreakable columns fit, every row as `column value; column value; ...`."""
    for column in table.columns:
        if column.no_wrap and column.min_width is None:
            column.min_width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
    unlimited = console.options.update(max_width=ANY_WIDTH, width=ANY_WIDTH)
    if Measurement.get(console, unlimited, table).minimum <= console.width:
        console.print(table)
        return
    lines = [str(table.title)] if table.title else []
    heads = [str(column.header) for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        lines += _filled(_told(heads, list(map(str, row))), console.width)
    if table.caption:
        lines.append(str(table.caption))
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _told(heads: Sequence[str], row: Sequence[str]) -> list[str]:
    """Return `column value` of every cell; words that end a row early, such as "not reached", are no column's value."""
    given = [(head, cell) for head, cell in zip(heads, row, strict=True) if cell]
    told = [f"{head} {cell}".strip() for head, cell in given]
    if given and not row[-1] and given[-1][1][0].isalpha():
        told[-1] = given[-1][1]
    return told


def _filled(parts: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines of whole parts; those after the first stand in from the left."""
    line = ""
    for part in parts:
        if line and len(line) + 2 + len(part) + 1 > width:
            yield line + ";"
            line = "  " + part
        else:
            line = f"{line}; {part}" if line else part
    yield line
