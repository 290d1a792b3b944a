"""Arrays on disk as safetensors, written so that a reader sees the old file or the new one, never half of either."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from edge_client.atomic import write_atomically
from edge_client.errors import EnvironmentFault

Array = NDArray[np.generic]


def save_checkpoint(path: Path, arrays: Mapping[str, Array], about: Mapping[str, str]) -> None:
    """Write arrays and what they are about; raises `EnvironmentFault` when the disk refuses."""
    content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, dict(about))
    write_atomically(path, content, "checkpoint")


def load_checkpoint(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays of a checkpoint and what they are about; raises `EnvironmentFault` for an unusable file."""
    try:
        with safe_open(path, "np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise EnvironmentFault(f"{path}: {error}; it is no readable checkpoint") from None
