"""`load` turns a dataset's name into arrays that are ready to train on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from sim.data.fetching import Opener, open_https
from sim.data.files import obtain
from sim.data.sources import SOURCES, Source
from sim.data.tabular import Dropped, parse, prepare


@dataclass(frozen=True, slots=True)
class Provenance:
    """The file that was read, and the SHA-256 of its unpacked content."""

    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset after preprocessing; the arrays are read-only.

    train: (N, d_x) float32, standardised normal records in file order.
    test: (M, d_x) float32. labels: (M,) int8, 1 = anomaly.
    image: (channels, height, width) of a record, None where it is a row of a table.
    kept: names of the d_x columns, none for images. dropped: columns left out, with the earlier column that caused it.
    """

    name: str
    train: NDArray[np.float32]
    test: NDArray[np.float32]
    labels: NDArray[np.int8]
    kept: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    licence: str
    provenance: tuple[Provenance, ...]
    image: tuple[int, int, int] | None = None

    @property
    def input_dim(self) -> int:
        """d_x, the width of a record."""
        return self.train.shape[1]


def load(name: str, data_dir: Path | None = None, *, offline: bool = False, opener: Opener = open_https) -> Dataset:
    """Find (or fetch), verify, read and preprocess the dataset `name`.

    Files are looked for in `data_dir`, GCA_DATA_DIR and the user cache; with `offline` nothing is fetched. Raises
    ConfigError for an unknown name or a folder that is not there, EnvironmentFault for a file that is absent,
    damaged or cannot be fetched.
    """
    source = source_of(name)
    contents, provenance = [], []
    for file in source.files:
        content, path = obtain(name, file, data_dir, offline=offline, opener=opener)
        contents.append(content)
        provenance.append(Provenance(path, file.sha256))
        del content  # `parse` frees each file as it goes; no name here may keep one alive
    split = prepare(parse(contents, source), source)
    for array in (split.train, split.test, split.labels):
        array.setflags(write=False)
    return Dataset(
        name=name,
        train=split.train,
        test=split.test,
        labels=split.labels,
        kept=split.kept,
        dropped=split.dropped,
        licence=source.licence,
        provenance=tuple(provenance),
    )


def source_of(name: str) -> Source:
    """Return the table's entry for `name`; an unknown name is a ConfigError that lists the known ones."""
    if name not in SOURCES:
        raise ConfigError(f"dataset {name!r} is unknown; choose one of {', '.join(SOURCES)}")
    return SOURCES[name]
