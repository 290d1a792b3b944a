"""From the devices' codes to a `Clustering`: front, placement, algorithm, and the result in the caller's terms."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from broker_server.clustering.gmm import gmm
from broker_server.clustering.kmeans import kmeans
from broker_server.clustering.minibatch_kmeans import minibatch_kmeans
from broker_server.clustering.placement import place
from broker_server.clustering.pool import Pool, pool_of
from broker_server.clustering.problem import Fit, Problem
from broker_server.clustering.soft_kmeans import soft_kmeans
from broker_server.clustering.spec import Clustering, ClusteringSpec, Diagnostics
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.words import counted

ALGORITHMS: dict[str, Callable[[Problem], Fit]] = {
    "gmm": gmm,
    "kmeans": kmeans,
    "soft_kmeans": soft_kmeans,
    "minibatch_kmeans": minibatch_kmeans,
}

SAME_CENTROID = 0.01
"""Centroids closer than this fraction of the pool's median radius count as one in the diagnostics."""


def run(
    codes: Sequence[NDArray[np.floating]] | NDArray[np.floating],
    spec: ClusteringSpec,
    seed: int,
    initial_centroids: NDArray[np.floating] | None,
) -> Clustering:
    """Do what `broker_server.clustering.cluster` promises."""
    spec = spec.checked()
    pool = pool_of(codes, spec.norm_bound)
    start = _centred_start(initial_centroids, pool)
    components = min(spec.components, pool.distinct)
    device, note = place(spec, len(pool.rows), pool.rows.shape[1], components)
    with torch.inference_mode():
        try:
            fit = _fitted(pool, spec, seed, start, components, device)
        except torch.OutOfMemoryError:
            if spec.device == "cuda":
                raise EnvironmentFault(
                    f"clustering: {counted(len(pool.rows), 'code')} and {components} components do not fit into CUDA "
                    "memory; use device 'auto' or 'cpu', or fewer initialisations"
                ) from None
            device, note = torch.device("cpu"), "auto: the pool did not fit into CUDA memory"
            fit = _fitted(pool, spec, seed, start, components, device)
    return _in_the_callers_terms(fit, pool, spec, components, device, note, start is not None)


def _centred_start(centroids: NDArray[np.floating] | None, pool: Pool) -> NDArray[np.float64] | None:
    """Return the given centroids relative to the pool's centre; raises ConfigError if they do not fit the pool."""
    if centroids is None:
        return None
    width = pool.rows.shape[1]
    if centroids.ndim != 2 or centroids.shape[1] != width or not len(centroids) or not np.isfinite(centroids).all():
        raise ConfigError(
            f"clustering: initial centroids of shape {centroids.shape} must be finite and (K, {width}); "
            "pass the previous round's centroids, or none"
        )
    return centroids.astype(np.float64) - pool.centre


def _fitted(
    pool: Pool,
    spec: ClusteringSpec,
    seed: int,
    start: NDArray[np.float64] | None,
    components: int,
    device: torch.device,
) -> Fit:
    """Run the algorithm on one device."""
    problem = Problem(
        rows=torch.from_numpy(pool.rows).to(device),
        groups=torch.from_numpy(pool.groups).to(device),
        radius=pool.radius,
        components=components,
        spec=spec,
        seed=seed,
        start=None if start is None else torch.from_numpy(start).to(device),
    )
    return ALGORITHMS[spec.algorithm](problem)


def _in_the_callers_terms(
    fit: Fit,
    pool: Pool,
    spec: ClusteringSpec,
    components: int,
    device: torch.device,
    note: str,
    warm: bool,
) -> Clustering:
    """Undo centring and sorting."""
    means = fit.means.cpu().numpy()
    # A mean of codes lies among them; rounding may put it outside by the last bit.
    centroids = np.clip(means + pool.centre, pool.lower, pool.upper)
    labels = np.empty(len(pool.rows), dtype=np.int64)
    labels[pool.order] = fit.labels.cpu().numpy()
    diagnostics = Diagnostics(
        device=device.type,
        device_note=note,
        rows=len(pool.rows),
        dropped=pool.dropped,
        distinct_rows=pool.distinct,
        requested_components=spec.components,
        fitted_components=components,
        distinct_centroids=_distinct(means, SAME_CENTROID * pool.radius),
        restarts=spec.initialisations,
        failed_restarts=fit.failed_restarts,
        warm_start=warm,
        iterations=fit.iterations,
        converged=fit.converged,
        log_likelihood=fit.log_likelihood,
        inertia=fit.inertia,
        degenerate_components=fit.degenerate_components,
        repaired_factorisations=fit.repaired_factorisations,
        repaired_clusters=fit.repaired_clusters,
    )
    return Clustering(centroids, fit.support.cpu().numpy(), labels, pool.kept, diagnostics)


def _distinct(means: NDArray[np.float64], apart: float) -> int:
    """Return how many of the means are farther than `apart` from every earlier one that counted."""
    counted: list[NDArray[np.float64]] = []
    for mean in means:
        if all(np.linalg.norm(mean - other) > apart for other in counted):
            counted.append(mean)
    return len(counted)
