"""NumpyTrainer against torch autograd and torch.optim.Adam, and against finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from model.engines import TorchAutoencoder, relative_error

from edge_client.model.autoencoder import Architecture, initial_parameters
from edge_client.model.trainer import ModelState, NumpyTrainer

BATCH, RATE = 50, 1e-3
RATES = np.array([RATE])
PHASES = ("recon", "align", "recon", "recon", "align")
"""Encoder and decoder take different numbers of steps, and each phase follows the other."""


@pytest.mark.parametrize("proximal", [False, True], ids=["plain", "proximal"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-8), (np.float32, 1e-3)])
@pytest.mark.parametrize("records", [1, 49, 50, 51, 130])
@pytest.mark.parametrize("input_dim", [1, 5, 14])
def test_epochs_equal_torch(input_dim, records, dtype, tolerance, proximal):
    arch = Architecture(input_dim)
    rng = np.random.default_rng([input_dim, records])
    samples = rng.standard_normal((records, input_dim)).astype(dtype)
    centroids = 0.3 * rng.standard_normal((7, arch.latent_dim)).astype(dtype)
    weights = rng.uniform(0.2, 3.0, 7).astype(dtype)
    flat = initial_parameters(arch, rng, dtype)
    anchor = flat + 0.05 * rng.standard_normal(flat.shape).astype(dtype)
    mu = 0.3

    trainer, state = NumpyTrainer(arch), ModelState.fresh(flat)
    reference = TorchAutoencoder(arch, flat, batch=BATCH, rate=RATE)
    anchor_layers = arch.layers(anchor)
    anchor_tensors = [torch.from_numpy(t) for w, b in zip(*anchor_layers, strict=True) for t in (w.T.copy(), b.copy())]
    for phase in PHASES:
        order = rng.permutation(records)
        if phase == "recon":
            state, ours = trainer.reconstruct(
                state,
                samples,
                order[None],
                batch_size=BATCH,
                learning_rates=RATES,
                proximal=(mu, anchor) if proximal else None,
            )
            theirs = reference.reconstruct(samples, order, (mu, anchor_tensors) if proximal else None)
        else:
            state, ours = trainer.align(
                state,
                samples,
                order[None],
                centroids=centroids,
                weights=weights,
                batch_size=BATCH,
                learning_rates=RATES,
            )
            theirs = reference.align(samples, order, centroids, weights)
        assert ours == pytest.approx(theirs, rel=tolerance)

    steps = -(-records // BATCH)
    assert (state.encoder_steps, state.decoder_steps, state.epochs) == (5 * steps, 3 * steps, 5)
    assert state.parameters.dtype == state.first_moment.dtype == state.second_moment.dtype == dtype
    ours = [t for pair in zip(*arch.layers(state.parameters), strict=True) for t in pair]
    for mine, other in zip(ours, reference.tensors(), strict=True):
        assert relative_error(mine, other) < tolerance


def small_problem(seed):
    """Return a 3-4-2-4-3 autoencoder in float64 with 11 records, three centroids and their weights."""
    rng = np.random.default_rng(seed)
    arch = Architecture(3, hidden=(4,), latent_dim=2)
    return (
        arch,
        initial_parameters(arch, rng, np.float64),
        rng.standard_normal((11, 3)),
        rng.standard_normal((3, 2)),
        np.array([0.5, 1.0, 3.0]),
    )


def gradient_seen_by_adam(state):
    """Return the gradient of the first step: then m = (1 - 0.9) g."""
    return state.first_moment / 0.1


def numeric_gradient(objective, flat, step=1e-6):
    gradient = np.zeros_like(flat)
    for i in range(len(flat)):
        up, down = flat.copy(), flat.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (objective(up) - objective(down)) / (2 * step)
    return gradient


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_reconstruction_gradient_by_finite_differences(seed, mu):
    arch, flat, samples, _, _ = small_problem(seed)
    anchor = flat[::-1].copy()
    trainer = NumpyTrainer(arch)

    def objective(theta):
        return trainer.score(theta, samples).mean() + mu * np.sum((theta - anchor) ** 2)

    state, loss = trainer.reconstruct(
        ModelState.fresh(flat),
        samples,
        np.arange(11)[None],
        batch_size=11,
        learning_rates=RATES,
        proximal=(mu, anchor),
    )
    assert loss == pytest.approx(trainer.score(flat, samples).mean(), rel=1e-12)
    np.testing.assert_allclose(gradient_seen_by_adam(state), numeric_gradient(objective, flat), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_alignment_gradient_by_finite_differences(seed):
    arch, flat, samples, centroids, weights = small_problem(seed)
    trainer = NumpyTrainer(arch)

    def objective(theta):
        distances = ((trainer.encode(theta, samples)[:, None] - centroids) ** 2).sum(axis=2)
        return np.mean(weights[distances.argmin(axis=1)] * distances.min(axis=1))

    state, loss = trainer.align(
        ModelState.fresh(flat),
        samples,
        np.arange(11)[None],
        centroids=centroids,
        weights=weights,
        batch_size=11,
        learning_rates=RATES,
    )
    assert loss == pytest.approx(objective(flat), rel=1e-12)
    # Codes do not depend on the decoder, so the full numeric gradient is zero there, as are the moments.
    np.testing.assert_allclose(gradient_seen_by_adam(state), numeric_gradient(objective, flat), rtol=1e-5, atol=1e-7)


def test_bias_correction_at_the_first_and_at_a_late_step():
    """At step 1 the move is lr * sign(g); deep into training the corrections have vanished."""
    arch, flat, samples, _, _ = small_problem(0)
    late = replace(ModelState.fresh(flat), encoder_steps=100_000, decoder_steps=100_000)
    trainer = NumpyTrainer(arch)
    arguments = {"batch_size": 11, "learning_rates": RATES}
    first, _ = trainer.reconstruct(ModelState.fresh(flat), samples, np.arange(11)[None], **arguments)
    moved = first.parameters - flat
    gradient = gradient_seen_by_adam(first)
    live = np.abs(gradient) > 1e-3
    np.testing.assert_allclose(moved[live], -RATE * np.sign(gradient[live]), rtol=1e-4)
    after, _ = trainer.reconstruct(late, samples, np.arange(11)[None], **arguments)
    expected = -RATE * 0.1 * gradient / (np.sqrt(0.001) * np.abs(gradient) + 1e-8)
    np.testing.assert_allclose((after.parameters - flat)[live], expected[live], rtol=1e-6)
