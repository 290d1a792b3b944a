"""The server's clustering: K centroids mu_k and supports N_k from the latent codes of a round.

    clustering = cluster(codes, ClusteringSpec.tabular("gmm", 10), seed)

GCA, Algorithm 1, aggregation step. Whatever the devices upload, the result is finite or a typed error; the same
pool, settings and seed give the same bits on one machine, in whatever order the devices came.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from broker_server.clustering.spec import Clustering, ClusteringSpec, Diagnostics

__all__ = ["Clustering", "ClusteringSpec", "Diagnostics", "cluster"]


def cluster(
    codes: Sequence[NDArray[np.floating]] | NDArray[np.floating],
    spec: ClusteringSpec,
    seed: int,
    *,
    initial_centroids: NDArray[np.floating] | None = None,
) -> Clustering:
    """Return the clusters of `codes`: one (L_i, d) array per device, or a single array.

    `initial_centroids` (K, d) from the previous round replace the seeds (warm start): with K of them there is one
    start instead of `spec.initialisations`, with fewer the missing ones are drawn.

    Raises ProtocolError if no row is usable or widths differ, ConfigError for settings out of range, and
    EnvironmentFault if CUDA is asked for and absent or too small.
    """
    from broker_server.clustering.engine import run  # torch takes seconds to import; settings alone need not wait

    return run(codes, spec, seed, initial_centroids)
