"""Gaussian mixture by EM, started from k-means++ K-means, as the paper's server does (GMM settings of its setup)."""

from dataclasses import replace

from broker_server.clustering import mixture
from broker_server.clustering.gaussians import Diagonal, Family, Full
from broker_server.clustering.kmeans import partition
from broker_server.clustering.problem import Fit, Problem
from broker_server.clustering.spec import KMEANS_ITERATIONS, KMEANS_TOLERANCE


def gmm(problem: Problem) -> Fit:
    """Return the restart of largest likelihood; the support of a component is its sum of responsibilities."""
    spec = problem.spec
    start = partition(problem, spec.initialisations, KMEANS_ITERATIONS, KMEANS_TOLERANCE)
    restarts = len(start.labels)
    sweep = mixture.Sweep(problem.rows, family(problem), restarts * problem.components)
    mixtures = mixture.fit(sweep, sweep.start(start.labels), restarts, spec.max_iterations, spec.tolerance)
    sparse = problem.rows.shape[1] if spec.covariance == "full" else 1
    return replace(mixture.best(problem, sweep, mixtures, sparse), repaired_clusters=start.repairs)


def family(problem: Problem) -> Family:
    """Return the kind of component that the settings name."""
    width, regularisation = problem.rows.shape[1], problem.spec.regularisation
    if problem.spec.covariance == "full":
        return Full(width, regularisation, problem.rows.device)
    return Diagonal(width, regularisation)
