"""What a device goes on from when its process has died: all that outlives a round, in one .npz file."""

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.atomic import write_atomically
from edge_client.errors import EnvironmentFault
from edge_client.model.trainer import ModelState

VECTORS = ("parameters", "first_moment", "second_moment")
COUNTS = 6
MAX_FILE = 2**31
"""Bytes; a larger file is none of ours."""
UNREADABLE = (ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, MemoryError)
"""What the readers of zip and .npy files raise for bytes that are neither: encrypted, of a version to come, or of a
size that no memory holds, among others."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A device at the end of `round` of a run, as messages name it. There is no random state: all streams derive from
    (seed, purpose, round, device).

    `holds` is the round whose broadcast it used last, `seq` the number of its next message.
    """

    run: str
    device: str
    round: int
    holds: int
    seq: int
    state: ModelState


def save(path: Path, kept: Checkpoint, mode: int = 0o666) -> None:
    """Write a checkpoint in place of an earlier one, with these permissions less the umask; raises `EnvironmentFault`
    when the disk refuses."""
    state = kept.state
    counts = (kept.round, kept.holds, kept.seq, state.encoder_steps, state.decoder_steps, state.epochs)
    vectors = {name: getattr(state, name) for name in VECTORS}
    content = io.BytesIO()
    np.savez(content, whose=np.array([kept.run, kept.device]), counts=np.array(counts, np.int64), **vectors)
    write_atomically(path, content.getbuffer(), "checkpoint", mode)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; raises `EnvironmentFault` for a file that is missing, torn or none."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError("larger than any checkpoint")
        with zipfile.ZipFile(path):  # a plain .npy would load as well, but as something else
            pass
        with np.load(path, allow_pickle=False) as file:
            return _checked({name: file[name] for name in file.files})
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror or error}; the checkpoint cannot be read") from None
    except UNREADABLE as error:
        raise EnvironmentFault(f"{path}: is no whole checkpoint ({error}); delete it to begin anew") from None


def _checked(arrays: dict[str, NDArray[Any]]) -> Checkpoint:
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it holds other things than arrays")
    whose, counts, vectors = arrays["whose"], arrays["counts"], [arrays[name] for name in VECTORS]
    if whose.shape != (2,) or whose.dtype.kind != "U":
        raise ValueError("it does not say whose it is")
    if counts.shape != (COUNTS,) or counts.dtype != np.int64 or (counts < 0).any():
        raise ValueError("its counts are none")
    kinds = {(vector.dtype, vector.shape) for vector in vectors}
    if len(kinds) != 1 or vectors[0].ndim != 1 or vectors[0].dtype not in (np.float32, np.float64):
        raise ValueError("its vectors do not belong together")
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise ValueError("it holds NaN or infinity")
    round, holds, seq, encoder_steps, decoder_steps, epochs = (int(count) for count in counts)
    state = ModelState(vectors[0], vectors[1], vectors[2], encoder_steps, decoder_steps, epochs)
    return Checkpoint(str(whose[0]), str(whose[1]), round, holds, seq, state)
