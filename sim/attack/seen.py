"""All that an attacker is handed, by communication protocol: plain frozen values and nothing behind them.

An attack takes one of these and no victim, so that the type says what the server sees. The arrays are copies of
their own, read-only, with no larger array beneath them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a server knows of the model because it asked for it: the settings it sent, and the width d_x of a record."""

    hyper: Hyperparameters
    input_dim: int

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The valid input domain X of eq. 8: a box for images, None for standardised tables, which are unbounded."""
        return None if self.hyper.image is None else (-1.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class UploadedCodes:
    """The server's view of one GCA device: its codes of one round (eq. 12), shape (M, d_z), and the model's shape."""

    codes: Floats
    shape: Shape

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or len(self.codes) < 2 or not np.isfinite(self.codes).all():
            raise ConfigError(
                f"attack: needs two or more finite codes, got an array of shape {self.codes.shape}; "
                "raise training.upload_fraction or choose a device with more records"
            )
        object.__setattr__(self, "codes", _own(self.codes))


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedModel:
    """The server's view of one device that shares parameters: its whole model, flat (P,), and the model's shape."""

    parameters: Floats
    shape: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", _own(self.parameters))


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy that keeps no other array alive."""
    copy = np.array(array, order="C", copy=True)
    copy.setflags(write=False)
    return copy
