"""Bandwidth over time from a CSV file, as measured somewhere: `trace:FILE[/RTT]` in place of a link's name.

    second,up_kbit,down_kbit
    0,120,400
    10,60,250
    25,0,0

Columns are found by name, in any order; others are not looked at. Each row holds until the next one, the last for
good. A rate of 0 is an outage of both directions and has to end: a link that is dead for good would let a run wait for
ever.
"""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from edge_client.errors import ConfigError, EnvironmentFault
from sim.links.link import Change, Outage

PREFIX = "trace:"
COLUMNS = ("second", "up_kbit", "down_kbit")
MAX_ROWS = 100_000


class Trace(NamedTuple):
    """A trace as the link model takes it: the first rates, and what changes when. Bits/s and seconds."""

    up: float
    down: float
    up_changes: tuple[Change, ...]
    down_changes: tuple[Change, ...]
    outages: tuple[Outage, ...]


class _Row(NamedTuple):
    second: float
    up: float
    down: float


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises `EnvironmentFault` if the file cannot be read, ConfigError with the line if it makes no
    sense."""
    rows = _read(path)
    outages: list[Outage] = []
    begun: float | None = None
    for row in rows:
        if row.up == 0.0 and begun is None:
            begun = row.second
        elif row.up > 0.0 and begun is not None:
            outages.append((begun, row.second))
            begun = None
    if begun is not None:
        raise ConfigError(f"{path}: ends in an outage; add a row that says when the link comes back")
    alive = [row for row in rows if row.up > 0.0]
    first = alive[0]
    return Trace(
        first.up, first.down, _changes([(row.second, row.up) for row in alive]),
        _changes([(row.second, row.down) for row in alive]), tuple(outages),
    )  # fmt: skip


def _changes(rates: Sequence[Change]) -> tuple[Change, ...]:
    """Leave out what changes nothing."""
    return tuple(now for before, now in pairwise(rates) if now[1] != before[1])


def _read(path: Path) -> list[_Row]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
                raise ConfigError(f"{path}: has no column {missing[0]!r}; a trace has {', '.join(COLUMNS)}")
            rows: list[_Row] = []
            for line in reader:
                if len(rows) == MAX_ROWS:
                    raise ConfigError(f"{path}: more than {MAX_ROWS:,} rows; thin the trace out")
                rows.append(_row(path, reader.line_num, line, rows[-1].second if rows else None))
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror or error}; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; save the trace as CSV") from None
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: {error}; save the trace as CSV") from None
    if not rows or rows[0].second != 0.0:
        raise ConfigError(f"{path}: must begin with a row for second 0")
    return rows


def _row(path: Path, number: int, line: dict[str, str], last: float | None) -> _Row:
    try:
        second, up, down = (float(line[name]) for name in COLUMNS)
    except (TypeError, ValueError):
        raise ConfigError(f"{path}, line {number}: holds something that is no number") from None
    if not (0.0 <= second < 1e9 and (last is None or second > last)):
        raise ConfigError(f"{path}, line {number}: second {second:g} must be later than the row before")
    if not (0.0 <= up < 1e9 and 0.0 <= down < 1e9 and (up == 0.0) == (down == 0.0)):
        raise ConfigError(
            f"{path}, line {number}: {up:g} kbit/s up, {down:g} down; give positive rates, or 0 for both in an outage"
        )
    return _Row(second, up * 1e3, down * 1e3)
