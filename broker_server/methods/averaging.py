"""What the methods that share parameters have in common: one weighted sum, rounded once.

Each of them ends a round with theta_r + sum_i a_i (theta_i - theta_r), with weights a_i of its own. That is
(1 - sum_i a_i) theta_r + sum_i a_i theta_i, and so it is computed here. The weights are exact fractions: where they
sum to one, theta_r drops out exactly, and methods whose weights are equal give equal bits.
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_server.methods.base import Upload
from edge_client.errors import GcaError

Vector = NDArray[np.float64]
BLOCK = 65_536
"""Coordinates looked at together by what needs the values of all devices side by side."""


def sample_shares(uploads: Mapping[str, Upload]) -> dict[str, Fraction]:
    """Return p_i = N_i / sum_j N_j by device."""
    total = sum(upload.samples for upload in uploads.values())
    return {device: Fraction(upload.samples, total) for device, upload in uploads.items()}


def weighted_sum(theta_r: NDArray[Any], uploads: Mapping[str, Upload], weights: Mapping[str, Fraction]) -> Vector:
    """Return (1 - sum_i a_i) theta_r + sum_i a_i theta_i in float64, shape (P,), with a_i = `weights`[i].

    Terms are added one by one in the order of device names, theta_r first, so no order of arrival can show; memory
    is two vectors, whatever the number of devices.
    """
    rest = 1 - sum(weights.values())
    terms = [(float(rest), theta_r)] if rest else []
    terms += [(float(weights[device]), uploads[device].arrays["parameters"]) for device in sorted(uploads)]
    return _running_sum(terms)


def coordinate_blocks(uploads: Mapping[str, Upload]) -> Iterator[Vector]:
    """Yield the models theta_i side by side, (C, at most `BLOCK`) in float64, rows in the order of device names."""
    models = [uploads[device].arrays["parameters"] for device in sorted(uploads)]
    for first in range(0, len(models[0]), BLOCK):
        yield np.array([model[first : first + BLOCK] for model in models], dtype=np.float64)


def as_broadcast(theta: Vector) -> NDArray[np.float32]:
    """Round the sum once, to what travels; raises `GcaError` if that leaves the finite numbers."""
    with np.errstate(over="ignore"):  # told below
        rounded = theta.astype(np.float32)
    if not np.isfinite(rounded).all():
        raise GcaError("the averaged parameters are not finite; choose less noise or a smaller learning rate")
    return rounded


def _running_sum(terms: Iterable[tuple[float, NDArray[Any]]]) -> Vector:
    (weight, vector), *others = terms
    total: Vector = np.multiply(vector, weight, dtype=np.float64)  # not zeros + ...: that would make -0.0 a 0.0
    scratch = np.empty_like(total)
    for weight, vector in others:
        np.multiply(vector, weight, out=scratch, dtype=np.float64)
        total += scratch
    return total
