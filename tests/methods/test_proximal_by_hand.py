"""The proximal gradient of FedProx worked out by hand, in every trainer."""

import numpy as np
import pytest

from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.context import LocalContext
from edge_client.methods.fedprox import FedProx
from edge_client.model.autoencoder import Architecture
from edge_client.model.choice import trainer_for
from edge_client.model.trainer import ModelState, NumpyTrainer

HYPER = Hyperparameters(hidden=(), latent_dim=1, batch_size=50, local_epochs=1, proximal_mu=0.25)
TRAINERS = {"numpy": NumpyTrainer(Architecture(1, (), 1)), "chosen here": trainer_for(HYPER, 1)}


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
@pytest.mark.parametrize(("mu", "expected"), [(0.25, (9.75, 5.0, -5.0, -4.5)), (0.0, (10.0, 5.0, -5.0, -5.0))])
def test_one_step_by_hand(trainer, mu: float, expected: tuple[float, ...]) -> None:
    """x = 2, z = w1 x + b1, x_hat = w2 z + b2; theta = (w1, b1, w2, b2) = (1/2, 0, -1, 1/2), anchor (1, 0, -1, -1/2).

    z = 1, x_hat = -1/2, so the derivative by x_hat is 2 (-5/2) = -5; by w2 it is -5 z = -5 and by b2 -5; by z it is
    -5 w2 = 5; by w1 it is 5 x = 10 and by b1 5. The proximal term adds 2 mu (theta - anchor) = (-1/4, 0, 0, 1/2).
    Adam's first moment after one step is a tenth of the gradient.
    """
    state = ModelState.fresh(np.array([0.5, 0.0, -1.0, 0.5], np.float32))
    anchor = np.array([1.0, 0.0, -1.0, -0.5], np.float32)
    after, losses = trainer.reconstruct(
        state, np.array([[2.0]], np.float32), np.array([[0]]), batch_size=50, learning_rates=np.array([1e-3]),
        proximal=(mu, anchor),
    )  # fmt: skip
    assert after.first_moment * 10 == pytest.approx(np.array(expected), rel=1e-6)
    assert losses == pytest.approx([6.25])  # (2 + 1/2)^2: the term is no part of it


def test_the_anchor_is_the_model_that_the_round_began_with() -> None:
    """At theta_r itself the term has no slope, so one full-batch step is FedAvg's; from the second step on it pulls
    back."""
    samples = np.random.default_rng(0).normal(size=(40, 1)).astype(np.float32)
    theta_r = np.array([0.5, 0.1, -1.0, 0.5], np.float32)

    def trained(mu: float, epochs: int) -> np.ndarray:
        hyper = Hyperparameters(hidden=(), latent_dim=1, batch_size=50, local_epochs=epochs, proximal_mu=mu)
        context = LocalContext(hyper, trainer_for(hyper, 1), samples, 7, "a", 3, lambda *_: None)
        return FedProx().before_upload(ModelState.fresh(theta_r.copy()), context)[1]["parameters"]

    def moved(theta: np.ndarray) -> float:
        return float(np.linalg.norm(theta - theta_r))

    assert trained(1e3, 1).tobytes() == trained(0.0, 1).tobytes()
    assert moved(trained(1e3, 20)) < moved(trained(0.0, 20)) / 2
    assert 0 < moved(trained(1.0, 20)) < moved(trained(0.0, 20))
