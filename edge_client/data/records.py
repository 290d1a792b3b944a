"""A device's own records, and the file that brings them."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.model.scoring import Labels
from edge_client.words import counted

Floats = NDArray[np.float32]
MAX_FILE = 4 * 1024**3


@dataclass(frozen=True, eq=False)
class Records:
    """`samples`: (N, d_x) normal records, standardised. `test` (M, d_x) and `labels` (M,) with 1 = anomaly are
    optional: they only serve evaluation, never training."""

    samples: Floats
    test: Floats | None = None
    labels: Labels | None = None


def load_records(path: Path, test_path: Path | None = None) -> Records:
    """Read `samples` from an .npz file, and `test` and `labels` from it or from `test_path`.

    Raises `EnvironmentFault` when a file cannot be read, `ConfigError` when its arrays are unusable.
    """
    arrays = _read(path)
    held_out = _read(test_path) if test_path else arrays
    if "samples" not in arrays:
        raise ConfigError(f"{path}: holds no array named 'samples'; save one of shape (records, features)")
    samples = _matrix(path, "samples", arrays["samples"])
    where = test_path or path
    if absent := {"test", "labels"} - held_out.keys():
        if test_path is None and len(absent) == 2:
            return Records(samples)
        raise ConfigError(f"{where}: holds no array named {sorted(absent)[0]!r}; evaluation needs 'test' and 'labels'")
    test, labels = _matrix(where, "test", held_out["test"]), held_out["labels"]
    if labels.shape != (len(test),) or not np.isin(labels, (0, 1)).all():
        raise ConfigError(f"{where}: 'labels' must hold {counted(len(test), 'value')}, 0 (normal) or 1 (anomaly)")
    if test.shape[1] != samples.shape[1]:
        raise ConfigError(
            f"{where}: 'test' has {counted(test.shape[1], 'feature')}, 'samples' of {path} has {samples.shape[1]}"
        )
    return Records(samples, test, labels.astype(np.bool_))


def _read(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(f"{path}: over {MAX_FILE} bytes; give this device fewer records")
        with zipfile.ZipFile(path):  # a plain .npy would load as well, but as something else
            pass
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror or error}; check the path") from None
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: not an .npz file of plain arrays ({type(error).__name__})") from None


def _matrix(path: Path, name: str, array: NDArray[np.generic]) -> Floats:
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise ConfigError(
            f"{path}: {name!r} must be numbers of shape (records, features), is {array.dtype}{array.shape}"
        )
    with np.errstate(over="ignore"):  # told below
        matrix = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        raise ConfigError(f"{path}: {name!r} holds NaN or infinity (row {row}, feature {column}); clean it first")
    return matrix
