"""The layout of the parameter vector, initial values, and forward passes in blocks."""

import numpy as np
import pytest

from edge_client.errors import ConfigError
from edge_client.model.autoencoder import BLOCK_ROWS, Architecture, encode, initial_parameters, reconstruct


@pytest.mark.parametrize(
    ("input_dim", "published"), [(22, 46_758), (14, 42_654), (15, 43_167), (29, 50_349), (5, 38_037)]
)
def test_parameter_count_is_the_published_one(input_dim, published):
    arch = Architecture(input_dim)
    assert arch.parameters == published == 513 * input_dim + 35_472


def test_layout_is_layer_after_layer_weights_then_bias():
    """d_x = 2, hidden 3, d_z = 1: weights and bias of 2x3, 3; 3x1, 1 (encoder); 1x3, 3; 3x2, 2 (decoder)."""
    arch = Architecture(2, hidden=(3,), latent_dim=1)
    assert arch.widths == (2, 3, 1, 3, 2)
    assert (arch.latent_layer, arch.encoder_parameters, arch.parameters) == (1, 13, 27)
    flat = np.arange(27.0)
    weights, biases = arch.layers(flat)
    assert weights[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert biases[0].tolist() == [6, 7, 8]
    assert weights[1].tolist() == [[9], [10], [11]]
    assert biases[1].tolist() == [12]
    assert weights[2].tolist() == [[13, 14, 15]]
    assert biases[3].tolist() == [25, 26]
    weights[3][0, 0] = -1
    assert flat[19] == -1, "the views write through"
    assert len(arch.layers(flat[: arch.encoder_parameters]).weights) == 2


def test_forward_by_hand():
    """Widths 1-2-1-2-1, x = 2.

    h = relu(2 * (1, -1) + (0, 1)) = (2, 0); z = 2 * (-3) + 0 * 5 + 1 = -5, linear, so it stays negative;
    h' = relu(-5 * (-1, 1) + (0, 0)) = (5, 0); x_hat = 5 * (-2) + 0 * 7 + 4 = -6, linear head.
    """
    arch = Architecture(1, hidden=(2,), latent_dim=1)
    flat = np.array([1, -1, 0, 1, -3, 5, 1, -1, 1, 0, 0, -2, 7, 4], dtype=np.float64)
    x = np.array([[2.0]])
    assert encode(arch, flat, x).tolist() == [[-5.0]]
    assert reconstruct(arch, flat, x).tolist() == [[-6.0]]


def test_initial_parameters_are_uniform_within_one_over_root_fan_in():
    arch = Architecture(14)
    flat = initial_parameters(arch, np.random.default_rng(0))
    assert flat.dtype == np.float32
    assert np.array_equal(flat, initial_parameters(arch, np.random.default_rng(0)))
    for weights, bias in zip(*arch.layers(flat), strict=True):
        bound = 1 / np.sqrt(len(weights))
        assert np.abs(weights).max() <= bound * (1 + 1e-6)
        assert np.abs(bias).max() <= bound * (1 + 1e-6)
        assert weights.std() == pytest.approx(bound / np.sqrt(3), rel=0.05)
        assert weights.max() > 0.98 * bound and weights.min() < -0.98 * bound


@pytest.mark.parametrize("rows", [1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 7])
def test_blocks_of_rows_do_not_show(rows):
    arch = Architecture(5)
    rng = np.random.default_rng(1)
    flat, x = initial_parameters(arch, rng, np.float64), rng.standard_normal((rows, 5))
    one_by_one = np.concatenate([reconstruct(arch, flat, x[i : i + 1]) for i in range(0, rows, 97)])
    np.testing.assert_allclose(reconstruct(arch, flat, x)[::97], one_by_one, rtol=1e-10, atol=1e-14)
    assert encode(arch, flat, x).shape == (rows, 16)


def test_no_hidden_layer_is_a_linear_autoencoder():
    arch = Architecture(3, hidden=(), latent_dim=2)
    assert arch.parameters == (3 * 2 + 2) + (2 * 3 + 3)
    flat = initial_parameters(arch, np.random.default_rng(2), np.float64)
    (W, V), (b, c) = arch.layers(flat)
    x = np.array([[1.0, -2.0, 0.5]])
    np.testing.assert_allclose(reconstruct(arch, flat, x), (x @ W + b) @ V + c, rtol=1e-12)


def test_a_layer_without_units_is_refused():
    with pytest.raises(ConfigError, match="at least one unit"):
        Architecture(0)
