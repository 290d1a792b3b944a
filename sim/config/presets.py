"""The paper's settings of the server's clustering, by kind of records (appendix "GCA Implementation").

Codes of tables have 16 numbers, so a Gaussian mixture can afford full covariances; codes of images have about a
thousand. The K-means family is set alike for both.
"""

from dataclasses import dataclass
from typing import Final, Literal

from broker_server.clustering import ClusteringSpec
from broker_server.clustering.spec import KMEANS_INITIALISATIONS
from sim.config.study import Clustering, Study


@dataclass(frozen=True)
class Preset:
    """What a Gaussian mixture is fitted with."""

    covariance: Literal["full", "diag"]
    regularisation: float
    initialisations: int


TABULAR: Final = Preset("full", 1e-6, 1)
VISION: Final = Preset("diag", 0.1, 100)


def preset(study: Study) -> Preset:
    """Return the preset for a study's records: images are what convolutional models are trained on."""
    return VISION if study.training.model == "convolutional" else TABULAR


def clustering_spec(study: Study) -> ClusteringSpec:
    """Return the study's clustering with what it leaves out filled in."""
    chosen, usual = study.clustering, preset(study)
    return ClusteringSpec(
        chosen.algorithm, chosen.components, covariance=chosen.covariance or usual.covariance,
        regularisation=usual.regularisation if chosen.regularisation is None else chosen.regularisation,
        initialisations=_initialisations(chosen, usual), max_iterations=chosen.max_iterations,
        tolerance=chosen.tolerance, temperature=chosen.temperature, batch_size=chosen.batch_size,
    )  # fmt: skip


def _initialisations(chosen: Clustering, usual: Preset) -> int:
    """The mini-batch and soft variants begin from K-means, and share its number."""
    return chosen.initialisations or (usual.initialisations if chosen.algorithm == "gmm" else KMEANS_INITIALISATIONS)
