"""A device's own records from a CSV file: numbers under a line of names, and a column that says which are normal.

Training sees normal records alone: the first four fifths of them, in the order of the file, since what a sensor wrote
last must not teach what it is judged by. The last fifth and all anomalies are the test set. Without a column of labels
all records are taken for normal, and nothing is left to judge by.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from edge_client.data.records import Floats, Records
from edge_client.data.scaler import Scaler
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.words import counted

MAX_BYTES = 256 * 1024**2
"""Of a file: about half a gigabyte of memory while it is read."""
MAX_COLUMNS = 65_536
MINIMUM_RECORDS = 10
"""Fewer normal records than this are nothing to train on."""
HELD_OUT = 5
"""One of so many normal records is held out."""
SHOWN = 12
"""Names of columns in a message."""
_ROWS_AT_ONCE = 4096
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """Which columns of a file mean what. `label` None: all records are normal; else those whose label is `normal`.
    The columns in `drop` are left out; what is no column's name there is several, with commas between."""

    label: str | None = None
    normal: str = "0"
    drop: tuple[str, ...] = ()


def load_csv(path: Path, columns: Columns, scaler: Scaler | None = None) -> tuple[Records, Scaler, str]:
    """Read a file and standardise it with `scaler`, or by the means and deviations of its own training records.

    Returns the records, what they were standardised with, and one line on what was found.

    Raises `EnvironmentFault` when the file cannot be read, `ConfigError` when its content is unusable.
    """
    names, normals, anomalies = _read(path, columns, scaler)
    held_out = len(normals) // HELD_OUT if len(anomalies) else 0
    train, tail = normals[: len(normals) - held_out], normals[len(normals) - held_out :]
    if len(train) < MINIMUM_RECORDS:
        raise ConfigError(
            f"{path}: {counted(len(train), 'normal record')} to train on, at least {MINIMUM_RECORDS} are needed"
            + (f"; {held_out} were held out" if held_out else "")
        )
    used = scaler or _own_scaler(path, names, train)
    samples = _standardised(path, train, used)
    if not len(anomalies):
        told = "no label column" if columns.label is None else f"no anomaly in {columns.label!r}"
        return Records(samples), used, f"{counted(len(train), 'record')} to train on, none to judge by ({told})"
    test = _standardised(path, np.concatenate([tail, anomalies]), used)
    labels = np.repeat(np.array([0, 1], np.int8), (len(tail), len(anomalies)))
    told = (
        f"{counted(len(train), 'normal record')} to train on, {len(tail)} normal and {len(anomalies)} anomalous to "
        "judge by"
    )
    return Records(samples, test, labels), used, told


# ---- the file ------------------------------------------------------------------------------------------------------


def _read(path: Path, columns: Columns, scaler: Scaler | None) -> tuple[list[str], Matrix, Matrix]:
    """Return the names of the features, in the scaler's order where there is one, and normal and anomalous records."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{path}: {size:,} bytes, more than {MAX_BYTES:,}; give this device fewer records")
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _parsed(path, file, columns, scaler)
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror or error}; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise ConfigError(f"{path}: is no CSV file: {error}") from None


def _parsed(path: Path, file: TextIO, columns: Columns, scaler: Scaler | None) -> tuple[list[str], Matrix, Matrix]:
    lines = csv.reader(file)
    header = [name.strip() for name in next(lines, [])]
    columns = replace(columns, drop=_apart(columns.drop, header))
    _check_header(path, header, columns)
    features = _features(path, header, columns, scaler)
    places = [header.index(name) for name in features]
    label = None if columns.label is None else header.index(columns.label)
    blocks, normal, seen = [np.empty((0, len(places)))], [np.empty(0, bool)], Counter[str]()
    for numbered in _blocks(path, lines, len(header)):
        blocks.append(_numbers(path, numbered, places, header))
        values = [columns.normal if label is None else row[label].strip() for _, row in numbered]
        normal.append(np.array([_same(value, columns.normal) for value in values]))
        seen.update(values)
    matrix, is_normal = np.concatenate(blocks), np.concatenate(normal)
    if len(matrix) and not is_normal.any():
        found = ", ".join(repr(value[:40]) for value, _ in seen.most_common(5))
        raise ConfigError(f"{path}: no record has {columns.normal!r} in {columns.label!r}, but {found}; give --normal")
    return features, matrix[is_normal], matrix[~is_normal]


def _apart(drop: Sequence[str], header: Sequence[str]) -> tuple[str, ...]:
    """Return each column to leave out on its own; a column whose name has a comma in it is one."""
    found: list[str] = []
    for text in drop:
        found += [text] if text in header else [part.strip() for part in text.split(",") if part.strip()]
    return tuple(found)


def _check_header(path: Path, header: Sequence[str], columns: Columns) -> None:
    if not any(header):
        raise ConfigError(f"{path}: is empty; it needs a line of column names, then a line for each record")
    if len(header) > MAX_COLUMNS:
        raise ConfigError(f"{path}: {counted(len(header), 'column')}, at most {MAX_COLUMNS:,} are allowed")
    if all(_is_number(name) for name in header):
        raise ConfigError(f"{path}: the first line holds numbers; put a line of column names above it")
    if len(header) == 1 and (mark := next((sign for sign in ";\t|" if sign in header[0]), None)):
        raise ConfigError(f"{path}: columns are separated by {mark!r}; save it with commas")
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise ConfigError(f"{path}: two columns are named {twice[0][:80]!r}; rename one")
    for name in (*columns.drop, *([columns.label] if columns.label is not None else [])):
        if name not in header:
            raise ConfigError(f"{path}: has no column {name[:80]!r}; it has {_shown(header)}")


def _features(path: Path, header: Sequence[str], columns: Columns, scaler: Scaler | None) -> list[str]:
    own = [name for name in header if name != columns.label and name not in columns.drop]
    if not own:
        raise ConfigError(f"{path}: no column is left to learn from")
    if scaler is None:
        return own
    if absent := [name for name in scaler.columns if name not in own]:
        raise ConfigError(f"{path}: lacks the column {absent[0][:80]!r} that the scaler has; it has {_shown(own)}")
    if more := [name for name in own if name not in scaler.columns]:
        raise ConfigError(f"{path}: column {more[0][:80]!r} is not in the scaler; leave it out with --drop")
    return list(scaler.columns)


def _blocks(path: Path, lines: Any, width: int) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield the rows of a `csv.reader` with their line numbers, some thousand at once, without empty lines."""
    numbered = ((lines.line_num, row) for row in lines if row)
    while block := list(islice(numbered, _ROWS_AT_ONCE)):
        for number, row in block:
            if len(row) != width:
                values, headings = counted(len(row), "value"), counted(width, "name")
                raise ConfigError(f"{path}, line {number}: {values} under {headings}; complete the line")
        yield block


def _numbers(
    path: Path, numbered: Sequence[tuple[int, list[str]]], places: Sequence[int], header: Sequence[str]
) -> Matrix:
    """Return the features of some rows; raises `ConfigError` that names the first cell that is none."""
    try:
        block = np.array([[_number(row[place]) for place in places] for _, row in numbered])
        if np.isfinite(block).all():
            return block
    except ValueError:
        pass  # told below, with its place
    for number, row in numbered:
        for place in places:
            text = row[place].strip()  # of more than `float` would take off
            if not (_is_number(row[place]) and np.isfinite(float(row[place]))):
                column = header[place][:80]
                cell = f"holds {text[:40]!r}" if text else "is empty"
                mend = f"give a number, or leave the column out: --drop {column!r}"
                raise ConfigError(f"{path}, line {number}: column {column!r} {cell}; {mend}")
    raise AssertionError("a cell that is no number is one")


def _number(text: str) -> float:
    """Return the number a cell holds; raises `ValueError` for text, `1_000` included, which may be a name."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _same(value: str, normal: str) -> bool:
    """Whether a label is the normal one: the same text, or the same number however it is written."""
    return value == normal or (_is_number(value) and _is_number(normal) and float(value) == float(normal))


# ---- standardising -------------------------------------------------------------------------------------------------


def _own_scaler(path: Path, names: Sequence[str], train: Matrix) -> Scaler:
    constant = [place for place in range(len(names)) if train[:, place].min() == train[:, place].max()]
    if constant:
        raise ConfigError(f"{path}: {_nothing_varies([names[at] for at in constant], train[0, constant], train)}")
    with np.errstate(over="ignore", invalid="ignore"):  # told below
        mean, deviation = train.mean(axis=0), train.std(axis=0)
    for name, one, other in zip(names, mean, deviation, strict=True):
        if not (np.isfinite(one) and 0 < other < np.inf):
            raise ConfigError(f"{path}: the values of column {name[:80]!r} are beyond what can be standardised")
    return Scaler(tuple(names), tuple(mean.tolist()), tuple(deviation.tolist()))


def _nothing_varies(names: Sequence[str], values: Matrix, train: Matrix) -> str:
    """Say which columns teach nothing, and the mend."""
    records, width = counted(len(train), "training record"), train.shape[1]
    if len(names) == width and width > 1:
        return f"none of the {counted(width, 'column')} varies in the {records}: there is nothing to learn"
    held = ", ".join(f"{name[:40]!r} is {value:g}" for name, value in zip(names[:SHOWN], values, strict=False))
    more = f" and {len(names) - SHOWN} more are constant" if len(names) > SHOWN else ""
    drop = " ".join(f"--drop {name[:80]!r}" for name in names[:SHOWN]) + (" ..." if more else "")
    what, they = ("column", "it varies") if len(names) == 1 else ("columns", "they vary")
    return (
        f"{what} {held}{more} in all {records} and so teach{'es' * (len(names) == 1)} nothing; leave "
        f"out with {drop}, or give a --scaler from records in which {they}"
    )


def _standardised(path: Path, records: Matrix, scaler: Scaler) -> Floats:
    with np.errstate(over="ignore"):  # told below
        scaled = ((records - np.array(scaler.mean)) / np.array(scaler.deviation)).astype(np.float32)
    if not np.isfinite(scaled).all():
        name = scaler.columns[int(np.argwhere(~np.isfinite(scaled))[0, 1])]
        raise ConfigError(f"{path}: column {name[:80]!r} is too far from the scaler's mean; is it in the same unit?")
    return np.ascontiguousarray(scaled)


def _shown(names: Sequence[str]) -> str:
    listed = ", ".join(repr(name[:40]) for name in names[:SHOWN])
    return listed if len(names) <= SHOWN else f"{listed} and {len(names) - SHOWN} more"
