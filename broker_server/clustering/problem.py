"""What every algorithm here takes and gives: a `Problem` of centred float64 rows, and a `Fit`."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from broker_server.clustering.spec import ClusteringSpec

CPU_BLOCK_ROWS = 1024
CUDA_BLOCK_VALUES = 2**25


@dataclass(frozen=True)
class Problem:
    """A pool on its device.

    `rows` (n, d) float64, centred; `groups` (n,) numbers the distinct rows; `radius` is the rows' median
    norm; `components` is K after the reduction
    to the distinct rows; `start` (K, d) the previous round's centroids, centred, or None.
    """

    rows: Tensor
    groups: Tensor
    radius: float
    components: int
    spec: ClusteringSpec
    seed: int
    start: Tensor | None


@dataclass(frozen=True)
class Fit:
    """Result of an algorithm, still centred: `means` (K', d), `support` (K',), `labels` (n,) int64 and the facts
    that `spec.Diagnostics` explains."""

    means: Tensor
    support: Tensor
    labels: Tensor
    iterations: int
    converged: bool
    log_likelihood: float | None = None
    inertia: float | None = None
    degenerate_components: int = 0
    repaired_factorisations: int = 0
    repaired_clusters: int = 0
    failed_restarts: int = 0


def blocks(rows: Tensor, columns: int) -> Iterator[slice]:
    """Yield slices over the rows, so that a (columns, rows-in-block) matrix stays in cache or in device memory.

    The block does not depend on anything but the shapes, so neither do the sums over blocks.
    """
    size = block_rows(rows, columns)
    for first in range(0, len(rows), size):
        yield slice(first, min(first + size, len(rows)))


def block_rows(rows: Tensor, columns: int) -> int:
    """Return the number of rows in a block of `blocks`."""
    size = CUDA_BLOCK_VALUES // max(columns, 1) if rows.is_cuda else CPU_BLOCK_ROWS
    return min(max(size, 1), len(rows))


def squared_distances(rows: Tensor, means: Tensor, labels: Tensor) -> Tensor:
    """Return (n,) squared distances of each row to the mean its label names, from differences: exact near zero."""
    distances = rows.new_empty(len(rows))
    for block in blocks(rows, rows.shape[1]):
        difference = rows[block] - means[labels[block]]
        distances[block] = difference.square_().sum(1)
    return distances


def compacted(means: Tensor, support: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three without the clusters that hold nothing, labels renumbered."""
    held = support > 0
    renumbered = torch.cumsum(held.to(torch.int64), 0) - 1
    return means[held], support[held], renumbered[labels]
