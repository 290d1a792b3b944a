"""`load` turns a dataset's name into arrays that are ready to train on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from sim.data import images
from sim.data.fetching import Opener, open_https
from sim.data.files import obtain
from sim.data.image_sources import IMAGE_SOURCES, ImageSource
from sim.data.sources import SOURCES, Source
from sim.data.tabular import Dropped, parse, prepare

Array = TypeVar("Array", bound=NDArray[Any])


@dataclass(frozen=True, slots=True)
class Provenance:
    """The file that was read, and the SHA-256 of its unpacked content."""

    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset after preprocessing; the arrays are read-only.

    train: (N, d_x) float32, normal records in file order: standardised, or pixels in [-1, 1].
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
        return int(self.train.shape[1])


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    seed: int | None = None,
    offline: bool = False,
    opener: Opener = open_https,
) -> Dataset:
    """Find (or fetch), verify, read and preprocess the dataset `name`.

    The seed chooses the pair of classes of an image dataset (`sim.data.images`); tables do not need one. Files are
    looked for in `data_dir`, GCA_DATA_DIR and the user cache; with `offline` nothing is fetched. Raises ConfigError
    for an unknown name, a missing seed or a folder that is not there, EnvironmentFault for a file that is absent,
    damaged or cannot be fetched.
    """
    source = source_of(name)
    if seed is None and isinstance(source, ImageSource):
        raise ConfigError(f"dataset {name!r} takes its pair of classes from the seed; name one")
    contents, provenance = [], []
    for file in source.files:
        content, path = obtain(source.folder, file, data_dir, offline=offline, opener=opener)
        contents.append(content)
        provenance.append(Provenance(path, file.sha256))
        del content  # `parse` frees each file as it goes; no name here may keep one alive
    if isinstance(source, ImageSource):
        assert seed is not None
        pair = images.split(*source.read(contents), source, seed)
        return Dataset(
            name=name,
            train=_constant(pair.train),
            test=_constant(pair.test),
            labels=_constant(pair.labels),
            kept=(),
            dropped=(),
            licence=source.licence,
            provenance=tuple(provenance),
            image=source.image,
        )
    split = prepare(parse(contents, source), source)
    return Dataset(
        name=name,
        train=_constant(split.train),
        test=_constant(split.test),
        labels=_constant(split.labels),
        kept=split.kept,
        dropped=split.dropped,
        licence=source.licence,
        provenance=tuple(provenance),
    )


def require(name: str, data_dir: Path | None = None) -> None:
    """Find (or fetch) and verify the files of a dataset, without making anything of them; raises as `load` does."""
    source = source_of(name)
    for file in source.files:
        obtain(source.folder, file, data_dir)


def source_of(name: str) -> Source | ImageSource:
    """Return the table's entry for `name`; an unknown name is a ConfigError that lists the known ones."""
    source = SOURCES.get(name) or IMAGE_SOURCES.get(name)
    if source is None:
        raise ConfigError(f"dataset {name!r} is unknown; choose one of {', '.join(sorted((*SOURCES, *IMAGE_SOURCES)))}")
    return source


def _constant(array: Array) -> Array:
    array.setflags(write=False)
    return array
