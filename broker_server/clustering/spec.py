"""What to fit and what came out: the settings of a clustering and its result, free of torch.

Presets follow the paper's experimental setup: full covariances for tabular latents, diagonal ones with many
restarts for the wide latents of the convolutional models.
"""

from typing import Annotated, Literal, Self

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_client.errors import ConfigError

Algorithm = Literal["gmm", "kmeans", "soft_kmeans", "minibatch_kmeans"]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
NonNegative = Annotated[float, Meta(ge=0.0, le=1e9)]
Positive = Annotated[float, Meta(gt=0.0, le=1e300)]

KMEANS_INITIALISATIONS = 10
KMEANS_ITERATIONS = 300
KMEANS_TOLERANCE = 1e-4


class ClusteringSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one clustering; what an algorithm does not use it ignores.

    `components` is K, an upper bound: never more clusters than distinct codes.
    `regularisation` is added to every variance (gmm), in squared latent units.
    `initialisations` restarts run side by side and the best one is kept.
    `tolerance` ends the iterations: for gmm and soft_kmeans the change of the mean log-likelihood per code (nats);
    for kmeans the squared movement of all centroids, as a fraction of the median squared distance of the codes from
    their median, per dimension; for minibatch_kmeans the same movement summed over an epoch.
    `temperature` divides the squared distance in soft_kmeans. `batch_size` is the number of codes per step of
    minibatch_kmeans. `norm_bound` drops codes farther than this from the pool's median: no encoder that works
    comes near it, and float64 keeps the others exact below it.
    """

    algorithm: Algorithm
    components: Count
    covariance: Literal["full", "diag"] = "full"
    regularisation: NonNegative = 1e-6
    initialisations: Annotated[int, Meta(ge=1, le=10_000)] = 1
    max_iterations: Count = 200
    tolerance: NonNegative = 1e-3
    temperature: Positive = 1.0
    batch_size: Count = 4096
    device: Literal["auto", "cpu", "cuda"] = "auto"
    norm_bound: Positive = 1e9

    @classmethod
    def tabular(cls, algorithm: Algorithm, components: int) -> Self:
        """Return the paper's settings for tabular latents (width 16)."""
        return cls._preset(algorithm, components, covariance="full", regularisation=1e-6, restarts=1)

    @classmethod
    def vision(cls, algorithm: Algorithm, components: int) -> Self:
        """Return the paper's settings for convolutional latents (width 784 or 1,024)."""
        return cls._preset(algorithm, components, covariance="diag", regularisation=0.1, restarts=100)

    @classmethod
    def _preset(
        cls,
        algorithm: Algorithm,
        components: int,
        *,
        covariance: Literal["full", "diag"],
        regularisation: float,
        restarts: int,
    ) -> Self:
        hard = algorithm in ("kmeans", "minibatch_kmeans")
        return cls(
            algorithm,
            components,
            covariance=covariance,
            regularisation=regularisation,
            initialisations=restarts if algorithm == "gmm" else KMEANS_INITIALISATIONS,
            max_iterations=KMEANS_ITERATIONS if hard else 200,
            tolerance=KMEANS_TOLERANCE if hard else 1e-3,
        )

    def checked(self) -> Self:
        """Return self if every field is in range; raises ConfigError that names the field."""
        try:
            msgspec.convert(msgspec.to_builtins(self), type(self))
        except msgspec.ValidationError as error:
            raise ConfigError(f"clustering settings: {error}; correct this value in the configuration") from None
        return self


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """How a clustering came about; counts unless a unit is given.

    `dropped` has one entry per device, in the order given: rows that were not finite or beyond the norm bound.
    `device_note` is empty, or says why the fit did not run where the settings asked.
    `distinct_centroids` counts centroids that differ by more than 1 % of the codes' median distance from their
    median; a soft_kmeans whose temperature exceeds the clusters' spread collapses to one.
    `log_likelihood` is the mean per code in nats (gmm), `inertia` the sum of squared distances of the codes to
    their centroid (the other algorithms). `degenerate_components` hold too few codes to span their covariance.
    `repaired_factorisations` and `repaired_clusters` count covariances that had to be loaded and empty clusters
    that were moved, over all restarts and iterations. `iterations` are those of the chosen restart.
    `failed_restarts` ended with a likelihood that is not a number.
    """

    device: str
    device_note: str
    rows: int
    dropped: tuple[int, ...]
    distinct_rows: int
    requested_components: int
    fitted_components: int
    distinct_centroids: int
    restarts: int
    failed_restarts: int
    warm_start: bool
    iterations: int
    converged: bool
    log_likelihood: float | None
    inertia: float | None
    degenerate_components: int
    repaired_factorisations: int
    repaired_clusters: int


class Clustering(msgspec.Struct, frozen=True, eq=False):
    """The centroids mu_k, their support N_k, and the centroid of every kept code.

    `centroids` is (K', d) float64 with 1 <= K' <= K, no empty one among them, in an order that depends only on the
    pool and the seed. `support` is (K',) float64 and sums to the number of kept codes. `labels` is (n,) int64, for
    the kept codes in the order uploaded; `kept` (N,) says which of all codes uploaded these are.
    """

    centroids: NDArray[np.float64]
    support: NDArray[np.float64]
    labels: NDArray[np.int64]
    kept: NDArray[np.bool_]
    diagnostics: Diagnostics
