"""The parts that only show under stress: repairs, seeding, warm starts, failed restarts, millions of rows."""

import msgspec
import numpy as np
import pytest
import torch
from clustering.nasty_codes import blobs

from broker_server.clustering import ClusteringSpec, cluster, mixture
from broker_server.clustering.factorisation import robust_cholesky
from broker_server.clustering.gaussians import Diagonal, Full
from broker_server.clustering.kmeans import lloyd, nearest
from broker_server.clustering.placement import CUDA_MIN_PRODUCTS, products
from broker_server.clustering.pool import pool_of
from broker_server.clustering.problem import Problem
from broker_server.clustering.seeding import seeds


def problem(codes: np.ndarray, components: int, **changes: object) -> Problem:
    pool = pool_of(codes, 1e9)
    spec = msgspec.structs.replace(ClusteringSpec.tabular("kmeans", components), **changes)
    rows = torch.from_numpy(pool.rows)
    return Problem(rows, torch.from_numpy(pool.groups), pool.radius, components, spec, seed=1, start=None)


def test_pool_is_centred_sorted_and_knows_its_duplicates() -> None:
    """Median (2, 5); rows sorted by value; two equal rows share a group; order leads back to the upload."""
    pool = pool_of(np.array([[3, 5], [1, 6], [2, 5], [2, 5], [1, 4]], np.float32), 1e9)
    np.testing.assert_array_equal(pool.centre, [2, 5])
    np.testing.assert_array_equal(pool.rows, [[-1, -1], [-1, 1], [0, 0], [0, 0], [1, 0]])
    np.testing.assert_array_equal(pool.groups, [0, 1, 2, 2, 3])
    assert pool.order.tolist() in ([4, 1, 2, 3, 0], [4, 1, 3, 2, 0])
    assert pool.distinct == 4


def test_a_median_keeps_both_of_two_distant_blobs() -> None:
    codes = np.concatenate([np.zeros((195, 3)), np.full((195, 3), 1e4)]).astype(np.float32)
    assert pool_of(codes, 1e9).dropped == (0,)


@pytest.mark.parametrize("components", [7, 20])
def test_seeds_are_distinct_rows_even_when_few_are(components: int) -> None:
    codes = np.repeat(np.random.default_rng(0).standard_normal((20, 3)), 30, axis=0).astype(np.float32)
    chosen = seeds(problem(codes, components), 6)
    for restart in chosen:
        assert len(torch.unique(restart, dim=0)) == components
        assert (torch.cdist(restart, problem(codes, components).rows).amin(1) < 1e-9).all()


def test_seeds_prefer_what_is_far() -> None:
    """Three needles of unequal size, far apart: greedy seeding finds all three in every restart."""
    codes = np.repeat(np.array([[0.0], [1e3], [-2e3]]), [500, 3, 3], axis=0).astype(np.float32)
    codes += 0.01 * np.random.default_rng(0).standard_normal(codes.shape).astype(np.float32)
    for restart in seeds(problem(codes, 3), 10):
        assert sorted(restart[:, 0].round(decimals=-2).tolist()) == [-2000.0, 0.0, 1000.0]


def test_a_restart_has_the_same_seeds_however_many_run_beside_it() -> None:
    asked = problem(blobs(300, 4, 6, seed=1), 6)
    assert torch.equal(seeds(asked, 8)[:2], seeds(asked, 2))


def test_an_empty_cluster_takes_the_farthest_code() -> None:
    """Centroids 0, 0, 100 on codes 0, 1, 10: the second and third are empty and take 10, then 1."""
    rows = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
    start = torch.tensor([[[0.0], [0.0], [100.0]]], dtype=torch.float64)
    found = lloyd(rows, start, 10, 0.0)
    assert found.repairs == 2
    assert sorted(found.means[0, :, 0].tolist()) == [0.0, 1.0, 10.0]
    assert float(found.inertia[0]) == 0.0


def test_equal_distances_go_to_the_first_centroid() -> None:
    rows = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    assert nearest(rows, torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64)).tolist() == [0, 0]


def test_cholesky_is_repaired_alone_and_counted() -> None:
    good = torch.tensor([[4.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
    singular = torch.ones(2, 2, dtype=torch.float64)
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    broken = torch.tensor([[torch.nan, 0.0], [0.0, 1.0]], dtype=torch.float64)
    factors, repaired = robust_cholesky(torch.stack([good, singular, indefinite, broken, -good]), 1e-6)
    assert repaired == 4
    torch.testing.assert_close(factors[0] @ factors[0].T, good)
    torch.testing.assert_close(factors[1] @ factors[1].T, singular, rtol=0, atol=1e-5)
    assert torch.isfinite(factors).all()
    assert (factors.diagonal(dim1=1, dim2=2) > 0).all()


def test_without_regularisation_a_flat_dimension_is_repaired_and_reported() -> None:
    codes = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    codes[:, 2] = 1.5
    spec = msgspec.structs.replace(ClusteringSpec.tabular("gmm", 3), regularisation=0.0)
    result = cluster(codes, spec, 0)
    assert result.diagnostics.repaired_factorisations > 0
    assert (result.centroids[:, 2] == 1.5).all()


def test_a_restart_that_fails_is_not_chosen_and_disturbs_nobody() -> None:
    rows = torch.from_numpy(blobs(200, 3, 4, seed=2))
    labels = torch.arange(200) % 4
    alone = mixture.Sweep(rows, Full(3, 1e-6, rows.device), 4)
    expected = mixture.fit(alone, alone.start(labels[None]), 1, 50, 1e-3)
    both = mixture.Sweep(rows, Full(3, 1e-6, rows.device), 8)
    start = both.start(labels.expand(2, -1))
    start.means[0, 0] = torch.nan
    fits = mixture.fit(both, start, 2, 50, 1e-3)
    assert fits.log_likelihood[0] == -torch.inf
    assert int(fits.iterations[1]) == int(expected.iterations[0])
    torch.testing.assert_close(fits.components.means[4:], expected.components.means, rtol=0, atol=1e-9)


def test_an_empty_component_is_never_broadcast() -> None:
    """A component that no code is near loses its weight; its mean would otherwise sit at the origin."""
    rows = torch.from_numpy(blobs(300, 3, 2, seed=3))
    sweep = mixture.Sweep(rows, Diagonal(3, 0.1), 3)
    start = sweep.start(torch.zeros(1, 300, dtype=torch.int64))
    fit = mixture.best(problem(rows.numpy(), 3), sweep, mixture.fit(sweep, start, 1, 10, 1e-3), sparse=1)
    assert len(fit.means) == 1
    assert float(fit.support.sum()) == pytest.approx(300)


@pytest.mark.parametrize("algorithm", ["gmm", "kmeans", "soft_kmeans", "minibatch_kmeans"])
def test_a_warm_start_continues_and_a_short_one_is_filled_up(algorithm: str) -> None:
    codes = blobs(800, 6, 10, seed=5).astype(np.float32)
    spec = ClusteringSpec.tabular(algorithm, 10)
    cold = cluster(codes, spec, 0)
    warm = cluster(codes, spec, 1, initial_centroids=cold.centroids)
    assert warm.diagnostics.warm_start and not cold.diagnostics.warm_start
    assert len(warm.centroids) == 10
    filled = cluster(codes, spec, 1, initial_centroids=cold.centroids[:4])
    assert len(filled.centroids) == 10
    if algorithm == "kmeans":
        assert warm.diagnostics.iterations <= 3
        assert warm.diagnostics.inertia <= cold.diagnostics.inertia * (1 + 1e-6)


def test_labels_are_the_nearest_centroids_and_supports_count_them() -> None:
    codes = blobs(500, 4, 6, seed=6).astype(np.float32)
    result = cluster([codes[:200], codes[200:]], ClusteringSpec.tabular("kmeans", 6), 0)
    distances = np.linalg.norm(codes[:, None] - result.centroids, axis=2)
    assert (distances.argmin(axis=1) == result.labels).mean() > 0.999
    np.testing.assert_array_equal(np.bincount(result.labels, minlength=6), result.support)


def test_components_with_too_few_codes_are_counted() -> None:
    codes = np.random.default_rng(0).standard_normal((60, 16)).astype(np.float32)
    assert cluster(codes, ClusteringSpec.tabular("gmm", 20), 0).diagnostics.degenerate_components == 20


def test_features_computed_by_block_give_what_kept_ones_give(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = blobs(3000, 5, 8, seed=7).astype(np.float32)
    spec = ClusteringSpec.tabular("gmm", 8)
    kept = cluster(codes, spec, 0)
    monkeypatch.setattr(mixture, "FEATURE_CACHE_BYTES", 0)
    by_block = cluster(codes, spec, 0)
    assert kept.centroids.tobytes() == by_block.centroids.tobytes()


def test_far_parts_in_small_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = (blobs(700, 4, 5, seed=8) * 1e-3 + 1e4 * (np.arange(700) % 2)[:, None]).astype(np.float32)
    spec = ClusteringSpec.tabular("gmm", 5)
    whole = cluster(codes, spec, 0)
    monkeypatch.setattr(mixture, "CENTRED_VALUES", 512)
    pieces = cluster(codes, spec, 0)
    np.testing.assert_allclose(pieces.centroids, whole.centroids, rtol=1e-6)
    np.testing.assert_allclose(pieces.support, whole.support, rtol=1e-4)


def test_auto_counts_the_products_of_one_iteration() -> None:
    """Full, d = 16: 136 + 16 + 1 features; times 1,000 rows, 10 components, one restart."""
    assert products(ClusteringSpec.tabular("gmm", 10), 1000, 16, 10) == 1_530_000
    assert products(ClusteringSpec.vision("gmm", 10), 600, 784, 10) == 600 * 10 * 100 * 1569 > CUDA_MIN_PRODUCTS
