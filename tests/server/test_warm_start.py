"""A round's clustering may begin from the centroids of the round before."""

import numpy as np
from server.driver import METHOD

from broker_server.clustering import ClusteringSpec
from broker_server.methods.base import Upload
from broker_server.methods.gca import GcaServer
from edge_client.protocol.codec import Arrays

COLD = GcaServer(2, 1.0, ClusteringSpec("kmeans", 3, tolerance=0.0, max_iterations=300), seed=1)
WARM = GcaServer(2, 1.0, COLD.clustering, seed=1, warm_start=True)


def pool() -> dict[str, Upload]:
    rng = np.random.default_rng(5)
    means = np.array([[0, 0], [10, 0], [0, 10]])
    codes = (means[np.arange(90) % 3] + rng.normal(size=(90, 2))).astype(np.float32)
    return {"a": Upload(90, 2, {"latents": codes})}


def by_value(broadcast: Arrays) -> np.ndarray:
    centroids = broadcast["centroids"]
    return centroids[np.lexsort(centroids.T)]


def test_a_warm_start_from_the_answer_ends_at_once() -> None:
    cold = COLD.aggregate(1, pool())
    warm = WARM.aggregate(2, pool(), cold.broadcast)
    assert warm.diagnostics["warm_start"] and warm.diagnostics["iterations"] <= 2 < 1 + cold.diagnostics["iterations"]
    np.testing.assert_allclose(by_value(warm.broadcast), by_value(cold.broadcast), atol=1e-6)


def test_the_first_round_and_a_cold_server_draw_their_own_seeds() -> None:
    before = {"centroids": np.zeros((3, 2), np.float32), "support": np.ones(3, np.float32)}
    assert not WARM.aggregate(1, pool(), None).diagnostics["warm_start"]
    assert not COLD.aggregate(2, pool(), before).diagnostics["warm_start"]
    assert METHOD.warm_start is False
