"""Read a delimited file into numbers, and the one preprocessing rule that yields the paper's widths.

The rule keeps the order of the file, because the order decides the split: with shuffled normals the width of the
academic set varies from draw to draw.
"""

import csv
import io
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.data.sources import Source

CORRELATION_LIMIT = 0.6
"""A feature correlated with an earlier one above this |Pearson| is dropped (paper, section "Datasets")."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Table:
    """Records as read: `values` (n, d) with categories as codes, `labels` (n,) 1 = anomaly, `part` (n,) file index."""

    columns: tuple[str, ...]
    values: Matrix
    labels: NDArray[np.int8]
    part: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A column that is not used: `earlier` is the first column before it that correlates with it above the limit.

    `earlier` and `correlation` are None where the recipe leaves the column out by name.
    """

    column: str
    earlier: str | None = None
    correlation: float | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Standardised records: `train` (N, d_x) normals, `test` (M, d_x), `labels` (M,) 1 = anomaly."""

    train: NDArray[np.float32]
    test: NDArray[np.float32]
    labels: NDArray[np.int8]
    kept: tuple[str, ...]
    dropped: tuple[Dropped, ...]


@dataclass(slots=True)
class _Categories:
    """Numbers the values of one column as they come; `alphabetical` renumbers them once all are known."""

    strip: str | None = None
    codes: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        return self.codes.setdefault(text.strip(self.strip), len(self.codes))

    def alphabetical(self, numbers: Matrix) -> Matrix:
        rank = {text: position for position, text in enumerate(sorted(self.codes))}
        return np.array([rank[text] for text in self.codes], dtype=np.float64)[numbers.astype(np.intp)]


def parse(contents: list[bytes], source: Source) -> Table:
    """Read the files of `source`, in order, into one table.

    `contents` is emptied on the way, since the largest file and its table together would double the memory.
    """
    columns = source.columns or _header(contents[0], source.delimiter)
    # The test half of adult ends its labels with a full stop; no label of any set has one of its own.
    coders = {columns.index(name): _Categories() for name in source.categorical}
    label = columns.index(source.label)
    coders[label] = _Categories(strip=" .")
    blocks = []
    for file in source.files:
        text = io.TextIOWrapper(io.BytesIO(contents.pop(0)), encoding="utf-8-sig")
        blocks.append(
            np.loadtxt(
                text,
                delimiter=source.delimiter,
                quotechar='"',
                comments=None,
                skiprows=file.skip,
                converters=dict(coders.items()),
                encoding=None,
                ndmin=2,
            )
        )
    values = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    part = np.repeat(np.arange(len(blocks), dtype=np.int8), [len(block) for block in blocks])
    names = coders.pop(label).codes
    for column, coder in coders.items():
        values[:, column] = coder.alphabetical(values[:, column])
    used = np.isin(values[:, label], [names[text] for text in names if text not in source.left_out])
    anomaly = values[:, label] == names[source.anomaly]
    features = np.array([index for index in range(len(columns)) if index != label], dtype=np.intp)
    return Table(
        columns=tuple(columns[index] for index in features),
        values=values[np.ix_(used, features)],
        labels=anomaly[used].astype(np.int8),
        part=part[used],
    )


def prepare(table: Table, source: Source) -> Split:
    """Split, drop correlated columns and standardise (paper, section "Datasets" and appendix "Preprocessing").

    With A anomalies, the last A normals and all anomalies are the test set, or, where a test file is provided, that
    file. Correlation, mean and standard deviation (ddof 0) are those of the training normals; test records see them
    only as constants. A constant column is centred and left at zero.
    """
    train, test, labels = _rows(table, source)
    mean = table.values[train].mean(axis=0)
    scale = table.values[train].std(axis=0)
    scale[scale == 0.0] = 1.0
    standard = (table.values[train] - mean) / scale
    candidates = [index for index, name in enumerate(table.columns) if name not in source.omitted]
    causes = correlated(standard[:, candidates])
    dropped = [Dropped(name) for name in source.omitted]
    for later, (earlier, value) in causes.items():
        names = table.columns[candidates[later]], table.columns[candidates[earlier]]
        dropped.append(Dropped(*names, correlation=value))
    kept = np.array([index for position, index in enumerate(candidates) if position not in causes], dtype=np.intp)
    return Split(
        train=standard[:, kept].astype(np.float32),
        test=((table.values[np.ix_(test, kept)] - mean[kept]) / scale[kept]).astype(np.float32),
        labels=labels,
        kept=tuple(table.columns[index] for index in kept),
        dropped=tuple(dropped),
    )


def correlated(standard: Matrix, limit: float = CORRELATION_LIMIT) -> dict[int, tuple[int, float]]:
    """Return {column: (first earlier column, r)} for every column with |r| > `limit` to one before it.

    `standard` (n, d) has mean 0 and variance 1 (or is constant zero) in each column. The earlier column counts even
    if it is itself dropped.
    """
    r = standard.T @ standard / len(standard)
    causes = {}
    for later in range(1, len(r)):
        over = np.flatnonzero(np.abs(r[:later, later]) > limit)
        if over.size:
            causes[later] = (int(over[0]), float(r[over[0], later]))
    return causes


def _rows(table: Table, source: Source) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int8]]:
    """Return the training rows, the test rows and the test labels, as indices in file order."""
    if source.provided_split:
        train = np.flatnonzero((table.part == 0) & (table.labels == 0))
        test = np.flatnonzero(table.part == 1)
        return train, test, table.labels[test]
    normals = np.flatnonzero(table.labels == 0)
    anomalies = np.flatnonzero(table.labels == 1)
    held_out = source.held_out or len(anomalies)
    test = np.concatenate([normals[-held_out:], anomalies[-held_out:]])
    return normals[:-held_out], test, table.labels[test]


def _header(content: bytes, delimiter: str) -> tuple[str, ...]:
    first = content[: content.index(b"\n")].decode("utf-8-sig")
    return tuple(name.strip() for name in next(csv.reader([first.strip()], delimiter=delimiter)))
