"""The geometric median of the devices' means in place of a cluster's centroid (Weiszfeld's iteration as completed by
Vardi and Zhang, PNAS 97, 2000; for hostile devices: Pillutla et al., IEEE TSP 70, 2022).

A centroid is the mean of codes, so one device can pull it as far as it likes. The point with the least sum of distances
to the devices' means stays within those of the honest ones as long as fewer than half of the devices behind a cluster
lie. Each device has one vote, whatever number of codes it brought; devices with few codes in a cluster, whose mean says
little, have one only if no other device has more.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]

FEWEST_CODES = 3
"""Codes in a cluster from which on a device's mean has a vote."""
TOLERANCE = 1e-10
"""The iteration ends when a step is shorter than this fraction of the points' spread."""
MAX_STEPS = 1000


def geometric_median(points: Rows) -> NDArray[np.float64]:
    """Return the point (d,) with the least sum of Euclidean distances to `points` (n, d), n >= 1.

    With two points, or any on one line with a middle that is not unique, the iteration's start, their mean, decides.
    """
    median: NDArray[np.float64] = points.mean(axis=0)
    spread = float(np.linalg.norm(points - median, axis=1).max())
    if spread == 0.0 or len(points) <= 2:
        return median
    for _ in range(MAX_STEPS):
        moved = _step(points, median)
        step = float(np.linalg.norm(moved - median))
        median = moved
        if step <= TOLERANCE * spread:
            break
    return median


def _step(points: Rows, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the next point of the iteration; where `at` is one of the points, that one holds it back by its own
    weight, and if it holds it for good `at` is the median."""
    distances = np.linalg.norm(points - at, axis=1)
    away = distances > 0.0
    weights = 1.0 / distances[away]
    target: NDArray[np.float64] = weights @ points[away] / weights.sum()
    here = int((~away).sum())
    if here == 0:
        return target
    pull = float(np.linalg.norm(weights @ (points[away] - at)))
    return at if pull <= here else at + (1.0 - here / pull) * (target - at)


def device_medians(codes: Sequence[Rows], labels: Sequence[NDArray[np.int64]], centroids: Rows) -> Rows:
    """Return, in place of `centroids` (K, d), the geometric medians of the devices' means.

    `codes` are each device's (L_i, d), `labels` (L_i,) the cluster of each. A cluster that holds none keeps its
    centroid.
    """
    medians = centroids.copy()
    for cluster in range(len(centroids)):
        shares = [own[of == cluster] for own, of in zip(codes, labels, strict=True)]
        voters = [own for own in shares if len(own) >= FEWEST_CODES] or [own for own in shares if len(own)]
        if voters:
            medians[cluster] = geometric_median(np.array([own.mean(axis=0) for own in voters]))
    return medians
