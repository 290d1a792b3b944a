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
SHARES = (1.0, 0.25, 0.0625)
"""Of Newton's step, which goes too far where the curvature changes on its way."""
SLACK = 1e-12
"""By how much, relatively, the pull on one of the points must stay below what that point holds against it."""


def geometric_median(points: Rows) -> NDArray[np.float64]:
    """Return the point (d,) with the least sum of Euclidean distances to `points` (n, d), n >= 1.

    With two points, or any on one line with a middle that is not unique, the iteration's start, their mean, decides.
    """
    median: NDArray[np.float64] = points.mean(axis=0)
    spread = float(np.linalg.norm(points - median, axis=1).max())
    if spread == 0.0 or len(points) <= 2:
        return median
    nearest = _nearest_to_all(points, points)
    here, pull, *_ = _slopes(points, nearest)
    if float(np.linalg.norm(pull)) < here * (1.0 - SLACK):  # the median is one of the points
        return nearest
    for _ in range(MAX_STEPS):
        moved = _nearest_to_all(points, _steps(points, median))
        step = float(np.linalg.norm(moved - median))
        median = moved
        if step <= TOLERANCE * spread:
            break
    return median


def _nearest_to_all(points: Rows, candidates: Sequence[NDArray[np.float64]] | Rows) -> NDArray[np.float64]:
    sums = [float(np.linalg.norm(points - candidate, axis=1).sum()) for candidate in candidates]
    nearest: NDArray[np.float64] = candidates[int(np.argmin(sums))]
    return nearest


def _slopes(points: Rows, at: NDArray[np.float64]) -> tuple[int, NDArray[np.float64], float, Rows]:
    """Return how many of the points lie at `at`; of the others the sum of the unit vectors towards them (d,), of their
    inverse distances, and the curvature of the sum of distances (d, d)."""
    towards = points - at
    distances = np.linalg.norm(towards, axis=1)
    away = distances > 0.0
    inverse = 1.0 / distances[away]
    units = towards[away] * inverse[:, None]
    curvature = inverse.sum() * np.eye(len(at)) - (units * inverse[:, None]).T @ units
    return int((~away).sum()), units.sum(axis=0), float(inverse.sum()), curvature


def _steps(points: Rows, at: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return where the iteration may go from `at`: Weiszfeld's step, which always comes nearer but creeps where the
    points are almost on a line, and shares of Newton's, which does not. One of the points holds the iteration back by
    its own weight."""
    here, pull, inverse, curvature = _slopes(points, at)
    if here:
        return [at + max(0.0, 1.0 - here / max(float(np.linalg.norm(pull)), SLACK)) * pull / inverse]
    newton = np.linalg.lstsq(curvature, pull, rcond=SLACK)[0]
    return [at + pull / inverse, *(at + part * newton for part in SHARES)]


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
