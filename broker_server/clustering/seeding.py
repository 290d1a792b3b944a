"""Greedy k-means++ seeding, all restarts at once.

Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, section 2.2; greedy variant of
its section 5: draw 2 + floor(ln K) candidates by squared distance and keep the one that lowers the potential most.
Random numbers come from the caller, so a restart's seeds do not depend on how many restarts run beside it.
"""

from math import log

import torch
from torch import Tensor

from broker_server.clustering.problem import Problem, blocks
from edge_client.seeds import stream


def candidates(components: int) -> int:
    """Return the number of candidates per seed."""
    return 2 + int(log(components))


def seeds(problem: Problem, restarts: int) -> Tensor:
    """Return (restarts, K, d) seeds: K distinct rows per restart.

    With `problem.start`, its centroids come first and only missing ones are drawn.
    """
    rows, count = problem.rows, problem.components
    uniforms = torch.from_numpy(stream(problem.seed, "k-means++").random((restarts, count, candidates(count))))
    chosen = rows.new_empty(restarts, count, rows.shape[1])
    state = _Distances(rows, problem.groups, restarts)
    given = 0 if problem.start is None else min(len(problem.start), count)
    for k in range(given):
        assert problem.start is not None
        chosen[:, k] = problem.start[k]
        state.take_point(chosen[:, k])
    for k in range(given, count):
        drawn = state.draw(uniforms[:, k] if k else uniforms[:, k, :1])
        best = state.best(drawn)
        chosen[:, k] = rows[best]
        state.take_row(best)
    return chosen


class _Distances:
    """Squared distance of every row to its nearest seed, per restart: `nearest` (R, n)."""

    def __init__(self, rows: Tensor, groups: Tensor, restarts: int) -> None:
        self.rows = rows
        self.groups = groups
        self.squares = rows.square().sum(1)
        self.nearest = rows.new_full((restarts, len(rows)), torch.inf)
        self.taken = torch.zeros(restarts, len(rows), dtype=torch.bool, device=rows.device)

    def draw(self, uniforms: Tensor) -> Tensor:
        """Return (R, L) row indices drawn in proportion to `nearest`, from (R, L) uniforms in [0, 1).

        Once every distance is zero or rounding noise, the rows not yet taken are equally likely. The running sum
        is taken on the CPU: the parallel one of CUDA does not repeat its bits.
        """
        nearest, taken = self.nearest.cpu(), self.taken.cpu()
        total = nearest.sum(1, keepdim=True)
        usable = torch.isfinite(total) & (total > 0)
        weights = torch.where(usable, nearest, (~taken).to(nearest.dtype))
        sums = weights.cumsum(1)
        below = torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:]))
        # side "right" finds the first sum above the target, hence a row whose weight is not zero.
        index = torch.searchsorted(sums, torch.minimum(uniforms * sums[:, -1:], below), right=True)
        return index.to(self.rows.device)

    def best(self, drawn: Tensor) -> Tensor:
        """Return (R,) the candidate of each restart that leaves the smallest sum of distances."""
        restarts, count = drawn.shape
        if count == 1:
            return drawn[:, 0]
        points = self.rows[drawn.flatten()]
        potential = self.rows.new_zeros(restarts, count)
        for block in blocks(self.rows, restarts * count):
            distance = self._to(points, block).view(restarts, count, -1)
            potential += torch.minimum(distance, self.nearest[:, None, block], out=distance).sum(2)
        return drawn.gather(1, potential.argmin(1, keepdim=True))[:, 0]

    def take_row(self, chosen: Tensor) -> None:
        """Make the rows `chosen` (R,) seeds; neither they nor their duplicates are drawn again."""
        self.taken |= self.groups == self.groups[chosen, None]
        self.take_point(self.rows[chosen])

    def take_point(self, points: Tensor) -> None:
        """Make `points` (R, d) seeds."""
        for block in blocks(self.rows, len(points)):
            nearest = self.nearest[:, block]
            torch.minimum(nearest, self._to(points, block), out=nearest)
        self.nearest.masked_fill_(self.taken, 0.0)

    def _to(self, points: Tensor, block: slice) -> Tensor:
        """Return (P, rows-in-block) squared distances, never negative."""
        distance = torch.addmm(points.square().sum(1, keepdim=True), points, self.rows[block].T, alpha=-2.0)
        return distance.add_(self.squares[block]).clamp_(min=0.0)
