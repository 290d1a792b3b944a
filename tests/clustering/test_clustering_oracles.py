"""The algorithms against scikit-learn in float64, and against cases worked out by hand."""

import warnings
from math import exp, log, pi

import msgspec
import numpy as np
import pytest
import torch
from clustering.nasty_codes import blobs
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from broker_server.clustering import ClusteringSpec, cluster, mixture
from broker_server.clustering.gaussians import Components, Diagonal, Family, Full
from broker_server.clustering.soft_kmeans import Isotropic


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
    torch.set_num_threads(before)


class GivenStart(GaussianMixture):
    """scikit-learn's mixture, started from the responsibilities set on it."""

    def _initialize_parameters(self, X, random_state, xp=None):
        self._initialize(X, self.responsibilities)


def family(kind: str, width: int, regularisation: float) -> Family:
    return Full(width, regularisation, torch.device("cpu")) if kind == "full" else Diagonal(width, regularisation)


def fitted(rows: np.ndarray, responsibilities: np.ndarray, kind: str, regularisation: float, iterations: int = 200):
    """Run our EM from (n, K) responsibilities."""
    sweep = mixture.Sweep(
        torch.from_numpy(rows), family(kind, rows.shape[1], regularisation), responsibilities.shape[1]
    )
    start = sweep.start(torch.from_numpy(np.ascontiguousarray(responsibilities.T))[None])
    return mixture.fit(sweep, start, 1, iterations, 1e-3)


def compare(rows: np.ndarray, responsibilities: np.ndarray, kind: str, regularisation: float) -> int:
    """Assert that both EMs agree; returns the number of iterations."""
    oracle = GivenStart(
        responsibilities.shape[1], covariance_type=kind, reg_covar=regularisation, tol=1e-3, max_iter=200
    )
    oracle.responsibilities = responsibilities
    oracle.fit(rows)
    ours = fitted(rows, responsibilities, kind, regularisation)
    assert int(ours.iterations[0]) == oracle.n_iter_
    assert bool(ours.converged[0]) == oracle.converged_
    np.testing.assert_allclose(ours.components.means.numpy(), oracle.means_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(ours.components.weights.numpy(), oracle.weights_, rtol=0, atol=1e-8)
    return int(oracle.n_iter_)


def hard(rows: np.ndarray, components: int) -> np.ndarray:
    labels = KMeans(components, n_init=1, max_iter=5, random_state=0).fit(rows).labels_
    return np.eye(components)[labels]


@pytest.mark.parametrize("components", [10, 20, 40, 80])
@pytest.mark.parametrize("count", [390, 1410, 3960])
def test_full_mixture_from_the_same_start(count: int, components: int) -> None:
    rows = blobs(count, 16, 30, seed=count)
    compare(rows, hard(rows, components), "full", 1e-6)


@pytest.mark.parametrize("components", [10, 20])
def test_full_mixture_of_many_rows(components: int) -> None:
    rows = blobs(28_350, 16, 30, seed=3)
    compare(rows, hard(rows, components), "full", 1e-6)


@pytest.mark.parametrize("components", [10, 20])
@pytest.mark.parametrize(("count", "width"), [(600, 784), (500, 1024)])
def test_diagonal_mixture_from_the_same_start(count: int, width: int, components: int) -> None:
    rows = blobs(count, width, 30, seed=width)
    compare(rows, hard(rows, components), "diag", 0.1)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_soft_start_takes_many_iterations_and_still_agrees(kind: str) -> None:
    rows = blobs(1500, 4, 5, seed=9)
    responsibilities = np.random.default_rng(1).dirichlet(np.full(5, 0.1), size=1500)
    assert compare(rows, responsibilities, kind, 1e-6) > 20


def test_restarts_in_a_batch_end_where_each_alone_ends() -> None:
    """Three starts of different length: those that converge leave the batch without touching the others."""
    rows = blobs(900, 5, 6, seed=4)
    starts = [np.random.default_rng(s).dirichlet(np.full(6, 0.1), size=900) for s in range(3)]
    sweep = mixture.Sweep(torch.from_numpy(rows), family("full", 5, 1e-6), 18)
    together = mixture.fit(sweep, sweep.start(torch.from_numpy(np.stack([s.T for s in starts]))), 3, 200, 1e-3)
    alone = [fitted(rows, start, "full", 1e-6) for start in starts]
    assert together.iterations.tolist() == [int(a.iterations[0]) for a in alone]
    assert len(set(together.iterations.tolist())) > 1
    expected = torch.cat([a.components.means for a in alone])
    torch.testing.assert_close(together.components.means, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_far_components_lose_no_digits(kind: str) -> None:
    """Two clusters 2e6 apart, spread 0.01: x^2 - mu^2 would leave nothing of the variance. Oracle: each alone."""
    near = 0.01 * np.random.default_rng(2).standard_normal((300, 3))
    rows = np.concatenate([near - 1e6, near[:200] * 2 + 1e6])
    result = fitted(rows, np.eye(2)[np.repeat([0, 1], [300, 200])], kind, 1e-12)
    for k, members in enumerate((near, near[:200] * 2)):
        whitening = result.components.whitening[k]
        precision = (whitening.T @ whitening if kind == "full" else torch.diag(whitening.square())).numpy()
        covariance = np.cov(members.T, bias=True)
        expected = np.linalg.inv(covariance) if kind == "full" else np.diag(1 / covariance.diagonal())
        np.testing.assert_allclose(precision, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_a_variance_that_cancels_is_the_regularisation() -> None:
    """Two rows 9999 apart, one component each: nothing varies, so the variance is 0.1 exactly."""
    rows = np.array([[9999.0], [0.0]])
    result = fitted(rows, np.eye(2), "diag", 0.1)
    np.testing.assert_allclose(result.components.whitening.numpy() ** -2.0, 0.1, rtol=1e-12)


def test_one_iteration_by_hand() -> None:
    """x = -1, 1, 3 with weights 1/2, means 0 and 2, variance 1.

    log r_2 / r_1 = 2x - 2, so r_2 = 1 / (1 + e^(2 - 2x)) = s(-4), 1/2, s(4) with s the logistic function; hence
    N_2 = 3/2 and mu_2 = (-s(-4) + 1/2 + 3 s(4)) / (3/2), and by symmetry about 1, mu_1 = 2 - mu_2.
    """
    rows = torch.tensor([[-1.0], [1.0], [3.0]], dtype=torch.float64)
    sweep = mixture.Sweep(rows, Diagonal(1, 0.0), 2)
    half, one = torch.full((2,), 0.5, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    updated, likelihood = sweep.iterate(Components(half, 2 * torch.arange(2.0).double()[:, None], one), 1)
    small, large = 1 / (1 + exp(4)), 1 / (1 + exp(-4))
    right = (-small + 0.5 + 3 * large) / 1.5
    assert updated.means[:, 0].tolist() == pytest.approx([2 - right, right], abs=1e-12)
    assert updated.weights.tolist() == pytest.approx([0.5, 0.5], abs=1e-12)

    def density(x: float) -> float:
        return 0.5 * (exp(-0.5 * x * x) + exp(-0.5 * (x - 2) ** 2)) / (2 * pi) ** 0.5

    assert float(likelihood) == pytest.approx(sum(log(density(x)) for x in (-1, 1, 3)) / 3, abs=1e-12)


def test_own_fits_are_as_likely_as_scikit_learns() -> None:
    codes = blobs(1200, 8, 12, seed=6).astype(np.float32)
    theirs = [
        GaussianMixture(10, reg_covar=1e-6, random_state=s).fit(codes.astype(float)).lower_bound_ for s in range(6)
    ]
    ours = [cluster(codes, ClusteringSpec.tabular("gmm", 10), s).diagnostics.log_likelihood for s in range(6)]
    assert np.mean(ours) > np.mean(theirs) - np.std(theirs)


def test_many_diagonal_restarts_are_as_likely_as_scikit_learns() -> None:
    """The best of 40 within one standard deviation of scikit-learn's best of 40; and no worse than our first."""
    codes = blobs(200, 256, 15, seed=7).astype(np.float32)
    theirs = [
        GaussianMixture(10, covariance_type="diag", reg_covar=0.1, random_state=s).fit(codes.astype(float)).lower_bound_
        for s in range(40)
    ]
    spec = msgspec.structs.replace(ClusteringSpec.vision("gmm", 10), initialisations=40)
    ours = cluster(codes, spec, 0).diagnostics.log_likelihood
    assert ours > np.max(theirs) - np.std(theirs)
    assert ours >= cluster(codes, msgspec.structs.replace(spec, initialisations=1), 0).diagnostics.log_likelihood


@pytest.mark.parametrize(("count", "components"), [(390, 10), (1410, 20), (3960, 40)])
def test_kmeans_inertia_within_one_per_cent(count: int, components: int) -> None:
    codes = blobs(count, 16, 30, seed=8).astype(np.float32)
    theirs = [KMeans(components, n_init=10, random_state=s).fit(codes.astype(float)).inertia_ for s in range(3)]
    ours = [cluster(codes, ClusteringSpec.tabular("kmeans", components), s).diagnostics.inertia for s in range(3)]
    assert np.mean(ours) <= 1.01 * np.mean(theirs)


def test_minibatch_inertia_within_three_per_cent() -> None:
    codes = blobs(12_000, 8, 20, seed=10).astype(np.float32)
    spec = ClusteringSpec.tabular("minibatch_kmeans", 20)
    oracle = MiniBatchKMeans(20, batch_size=4096, n_init=10, random_state=0).fit(codes.astype(float))
    assert cluster(codes, spec, 0).diagnostics.inertia <= 1.03 * oracle.inertia_


def test_soft_kmeans_fixed_point_by_hand() -> None:
    """x = -a, a (K = 2, T = 1, a = 2): mu = +-m with m = a tanh(2 a m), since r / (1 - r) = e^(4 a m)."""
    result = cluster(np.array([[-2.0], [2.0]], np.float32), ClusteringSpec.tabular("soft_kmeans", 2), 0)
    m = 2.0
    for _ in range(100):
        m = 2.0 * np.tanh(4.0 * m)
    assert sorted(result.centroids[:, 0]) == pytest.approx([-m, m], abs=1e-6)
    assert result.support.tolist() == pytest.approx([1.0, 1.0], abs=1e-6)


def test_soft_kmeans_collapses_above_its_temperature_and_says_so() -> None:
    """One Gaussian of variance 0.04 per dimension, far below T / 2: every centroid is the mean."""
    codes = (0.2 * np.random.default_rng(1).standard_normal((500, 4))).astype(np.float32)
    spec = msgspec.structs.replace(ClusteringSpec.tabular("soft_kmeans", 8), tolerance=0.0)
    result = cluster(codes, spec, 0)
    assert result.diagnostics.distinct_centroids == 1
    np.testing.assert_allclose(result.centroids, np.tile(codes.mean(axis=0), (8, 1)), atol=1e-5)
    np.testing.assert_allclose(result.support, 500 / 8, rtol=1e-4)


def test_isotropic_logits_agree_near_and_far() -> None:
    rows = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kind = Isotropic(0.7)
    means = Components(torch.full((4,), 0.25).double(), rows[:4] * 2, torch.ones(4, 1).double())
    theta = rows.new_empty(4, 4)
    kind.coefficients(means, theta)
    by_features = theta @ kind.features(rows).T
    torch.testing.assert_close(by_features, kind.centred_logits(rows, means), rtol=0, atol=1e-12)
