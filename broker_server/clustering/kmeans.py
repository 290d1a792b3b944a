"""K-means: Lloyd's iterations on all restarts at once, empty clusters repaired.

Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28(2), 1982. One matrix product scores every
code against every centroid of every restart; another sums the codes of each cluster, so that no scatter with an
unspecified order of additions is involved.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from broker_server.clustering.problem import Fit, Problem, block_rows, blocks, compacted, squared_distances
from broker_server.clustering.seeding import seeds


@dataclass(frozen=True)
class Partition:
    """Restarts R side by side: `means` (R, K, d), `labels` (R, n), `inertia` (R,), `iterations` (R,),
    `converged` (R,) bool, and the number of repaired clusters."""

    means: Tensor
    labels: Tensor
    inertia: Tensor
    iterations: Tensor
    converged: Tensor
    repairs: int


def kmeans(problem: Problem) -> Fit:
    """Return the restart of smallest inertia."""
    spec = problem.spec
    return best(problem, partition(problem, spec.initialisations, spec.max_iterations, spec.tolerance))


def best(problem: Problem, found: Partition) -> Fit:
    """Return the restart of smallest inertia as a `Fit` without its empty clusters."""
    r = int(found.inertia.argmin())
    support = torch.bincount(found.labels[r], minlength=found.means.shape[1]).to(found.means.dtype)
    means, support, labels = compacted(found.means[r], support, found.labels[r])
    return Fit(
        means,
        support,
        labels,
        iterations=int(found.iterations[r]),
        converged=bool(found.converged[r]),
        inertia=float(found.inertia[r]),
        repaired_clusters=found.repairs,
    )


def partition(problem: Problem, restarts: int, max_iterations: int, tolerance: float) -> Partition:
    """Seed and run `restarts` restarts; a warm start has nothing to restart and runs once."""
    if problem.start is not None and len(problem.start) >= problem.components:
        restarts = 1
    return lloyd(problem.rows, seeds(problem, restarts), max_iterations, movement_limit(problem, tolerance))


def movement_limit(problem: Problem, tolerance: float) -> float:
    """Return the squared movement of all centroids together that counts as standing still.

    The scale is a median: the variance, which one outlier of 1e6 inflates, would end the iterations at once.
    """
    return tolerance * problem.radius**2 / problem.rows.shape[1]


def lloyd(rows: Tensor, start: Tensor, max_iterations: int, limit: float) -> Partition:
    """Iterate from `start` (R, K, d) until the centroids of a restart move by at most `limit` (squared, all
    centroids together), or `max_iterations`.

    A restart that has converged leaves the batch, so it pays for its own iterations only.
    """
    restarts = len(start)
    means = start.clone()
    iterations = torch.zeros(restarts, dtype=torch.int64)
    converged = torch.zeros(restarts, dtype=torch.bool)
    sums = _ClusterSums(rows, start.shape[0] * start.shape[1])
    active = torch.arange(restarts)
    repairs = 0
    for iteration in range(1, max_iterations + 1):
        current = means[active]
        totals, counts = sums.of(current)
        for r in (counts == 0).any(1).nonzero()[:, 0].tolist():
            repairs += _repair(rows, current[r], totals[r], counts[r])
        updated = torch.where(counts[..., None] > 0, totals / counts[..., None].clamp(min=1), current)
        means[active] = updated
        iterations[active] = iteration
        moved = (updated - current).square_().sum((1, 2)).cpu()
        done = moved <= limit
        converged[active[done]] = True
        active = active[~done]
        if not len(active):
            break
    labels = torch.stack([nearest(rows, centroids) for centroids in means])
    inertia = torch.stack([squared_distances(rows, m, own).sum() for m, own in zip(means, labels, strict=True)])
    return Partition(means, labels, inertia, iterations, converged, repairs)


def nearest(rows: Tensor, means: Tensor) -> Tensor:
    """Return (n,) the index of the nearest of `means` (K, d) for every row, the first one of equals."""
    labels = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    index = torch.arange(len(means), dtype=rows.dtype, device=rows.device)
    squares = means.square().sum(1, keepdim=True)
    for block in blocks(rows, len(means)):
        member = _one_hot(torch.addmm(squares, means, rows[block].T, alpha=-2.0)[None])[0]
        labels[block] = (index @ member).to(torch.int64)
    return labels


def _one_hot(scores: Tensor) -> Tensor:
    """Turn `scores` (R, K, B) in place into 1 at the smallest score of each column, the first one of equals, else 0."""
    smallest = scores.amin(1, keepdim=True)
    member = scores.eq_(smallest)
    if int(member.count_nonzero()) != smallest.numel():
        member *= member.cumsum(1) == 1
    return member


class _ClusterSums:
    """Sums and sizes of the clusters around given centroids, buffers kept between iterations."""

    def __init__(self, rows: Tensor, columns: int) -> None:
        self.rows = rows
        self.padded = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        self.columns = columns
        self.scores = rows.new_empty(columns * block_rows(rows, columns))

    def of(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """Return for (R, K, d) centroids the sums (R, K, d) and sizes (R, K) of their clusters."""
        restarts, count, width = means.shape
        flat = means.reshape(-1, width)
        squares = flat.square().sum(1, keepdim=True)
        totals = self.rows.new_zeros(len(flat), width + 1)
        for block in blocks(self.rows, self.columns):
            rows = self.rows[block]
            scores = self.scores[: len(flat) * len(rows)].view(len(flat), len(rows))
            torch.addmm(squares, flat, rows.T, alpha=-2.0, out=scores)
            _one_hot(scores.view(restarts, count, -1))
            totals.addmm_(scores, self.padded[block])
        totals = totals.view(restarts, count, width + 1)
        return totals[..., :-1], totals[..., -1]


def _repair(rows: Tensor, means: Tensor, totals: Tensor, counts: Tensor) -> int:
    """Give each empty cluster the code farthest from its own centroid; returns how many were repaired.

    `totals` (K, d) and `counts` (K,) of one restart are changed in place. A code that is alone in its cluster, or
    sits on its centroid, stays where it is; equal distances go to the lower row, so repairs repeat exactly.
    """
    labels = nearest(rows, means)
    distances = squared_distances(rows, means, labels)
    farthest = torch.sort(distances, descending=True, stable=True).indices
    empty = (counts == 0).nonzero()[:, 0].tolist()
    repaired = 0
    for row in farthest.tolist():
        if repaired == len(empty) or distances[row] == 0:
            break
        donor = labels[row]
        if counts[donor] > 1:
            totals[donor] -= rows[row]
            counts[donor] -= 1
            totals[empty[repaired]] = rows[row]
            counts[empty[repaired]] = 1
            repaired += 1
    return repaired
