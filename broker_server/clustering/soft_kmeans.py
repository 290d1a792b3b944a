"""Soft K-means: responsibilities softmax(-||x - mu_k||^2 / T), started from K-means.

The distance is squared. With it, soft K-means is EM for a mixture of equal weights and one fixed isotropic variance
T / 2, and runs on the same loop. Above a temperature of twice the largest within-cluster variance the centroids
merge; `Diagnostics.distinct_centroids` shows it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from broker_server.clustering import mixture
from broker_server.clustering.gaussians import FAR, TINY, Components
from broker_server.clustering.kmeans import partition
from broker_server.clustering.problem import Fit, Problem, squared_distances
from broker_server.clustering.spec import KMEANS_ITERATIONS, KMEANS_TOLERANCE


class Isotropic:
    """Components of equal weight and of the variance that belongs to a temperature."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.repairs = 0

    def features(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_ones(len(rows), 1)], 1)

    def coefficients(self, components: Components, out: Tensor) -> None:
        out[:, :-1] = 2.0 * components.means
        out[:, -1] = -components.means.square().sum(1)
        out /= self.temperature

    def far(self, components: Components) -> Tensor:
        return components.means.square().amax(1) > 0.5 * FAR * self.temperature

    def centred_logits(self, rows: Tensor, components: Components) -> Tensor:
        # ||x||^2 is missing from every product above, so it is missing here too: ||x||^2 - ||x - mu||^2.
        distances = (rows[None] - components.means[:, None]).square_().sum(2)
        return (rows.square().sum(1) - distances) / self.temperature

    def centred_moments(self, rows: Tensor, responsibilities: Tensor, means: Tensor) -> Tensor:
        weighted = (rows[None] - means[:, None]).mul_(responsibilities[..., None])
        return torch.cat([weighted.sum(1), responsibilities.sum(1, keepdim=True)], 1)

    def components(self, moments: Tensor, origins: Tensor | None, restarts: int) -> Components:
        count = len(moments) // restarts
        offset = moments[:, :-1] / (moments[:, -1:] + TINY)
        means = offset if origins is None else origins + offset
        equal = moments.new_full((len(moments),), 1.0 / count)
        return Components(equal, means, moments.new_full((len(moments), 1), (2.0 / self.temperature) ** 0.5))


def soft_kmeans(problem: Problem) -> Fit:
    """Return the fixed point reached from the K-means restart of smallest inertia."""
    spec = problem.spec
    start = partition(problem, spec.initialisations, KMEANS_ITERATIONS, KMEANS_TOLERANCE)
    labels = start.labels[start.inertia.argmin()][None]
    sweep = mixture.Sweep(problem.rows, Isotropic(spec.temperature), problem.components)
    mixtures = mixture.fit(sweep, sweep.start(labels), 1, spec.max_iterations, spec.tolerance)
    found = mixture.best(problem, sweep, mixtures, sparse=0)
    inertia = float(squared_distances(problem.rows, found.means, found.labels).sum())
    return replace(found, log_likelihood=None, inertia=inertia, repaired_clusters=start.repairs)
