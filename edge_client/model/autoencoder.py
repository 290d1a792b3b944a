"""The tabular autoencoder x -> z -> x_hat, its parameters as one flat vector, forward and backward pass.

Layers are dense, d_x -> 256 -> 64 -> 16 -> 64 -> 256 -> d_x by default, with ReLU between them; the latent layer
and the head are linear.

Layout of the parameter vector, shared by every trainer, by Adam's moments and by the wire: layer after layer from
input to head; for each layer first its weights, shape (inputs, outputs) in C order, so that y = x W + b, then its
bias, shape (outputs,). No padding. The encoder's layers come first, so "only the encoder moves" is the leading slice
`[:architecture.encoder_parameters]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from edge_client.errors import ConfigError

FloatArray = NDArray[np.floating[Any]]

BLOCK_ROWS = 1024
"""Rows per forward pass outside training: 13,000 records then need 3 MB of activations instead of 34."""


class Layers(NamedTuple):
    """Views into one flat vector: `weights[l]` (inputs, outputs) and `biases[l]` (outputs,) of layer l."""

    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Widths of a symmetric dense autoencoder: `hidden` on the way to the code, and back in reverse."""

    input_dim: int
    hidden: tuple[int, ...] = (256, 64)
    latent_dim: int = 16

    def __post_init__(self) -> None:
        if min(self.widths) < 1:
            raise ConfigError(f"autoencoder: every layer needs at least one unit, widths are {self.widths}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths from input to output, one more than there are layers."""
        return (self.input_dim, *self.hidden, self.latent_dim, *reversed(self.hidden), self.input_dim)

    @property
    def latent_layer(self) -> int:
        """Index of the layer whose output is the code z; layers up to and including it are the encoder."""
        return len(self.hidden)

    @property
    def linear_layers(self) -> frozenset[int]:
        """Indices of the layers without ReLU: the latent layer and the head."""
        return frozenset({self.latent_layer, len(self.widths) - 2})

    @property
    def parameters(self) -> int:
        """Length P of the parameter vector; 513 d_x + 35,472 for the default widths."""
        return _count(self.widths)

    @property
    def encoder_parameters(self) -> int:
        """Length of the leading block that holds the encoder."""
        return _count(self.widths[: self.latent_layer + 2])

    @property
    def flops(self) -> float:
        """Arithmetic of one reconstruction step per record: 2 operations per weight forward, 4 backward."""
        return 6.0 * self.parameters

    @property
    def encoder_flops(self) -> float:
        """Arithmetic of one alignment step per record, forward and backward."""
        return 6.0 * self.encoder_parameters

    def layers(self, flat: FloatArray) -> Layers:
        """Cut a flat vector into named views; writing to a view writes to `flat`.

        Also takes the leading encoder block alone, and then returns the encoder's layers only.
        """
        weights, biases, start = [], [], 0
        for inputs, outputs in pairwise(self.widths):
            if start == flat.size:
                break
            middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
            weights.append(flat[start:middle].reshape(inputs, outputs))
            biases.append(flat[middle:end])
            start = end
        return Layers(tuple(weights), tuple(biases))


def _count(widths: Sequence[int]) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


def initial_parameters(arch: Architecture, rng: np.random.Generator, dtype: DTypeLike = np.float32) -> FloatArray:
    """Draw weights and biases from U(-1/sqrt(inputs), 1/sqrt(inputs)), as torch.nn.Linear does; shape (P,)."""
    flat = np.empty(arch.parameters, dtype)
    for weights, bias in zip(*arch.layers(flat), strict=True):
        bound = 1.0 / np.sqrt(len(weights))
        weights[:] = rng.uniform(-bound, bound, weights.shape)
        bias[:] = rng.uniform(-bound, bound, bias.shape)
    return flat


def forward(layers: Layers, inputs: FloatArray, outputs: Sequence[FloatArray], linear: frozenset[int]) -> None:
    """Write the output of each layer, after its ReLU unless in `linear`, to `outputs[l]`, shape (rows, width).

    As many layers run as there are outputs, so that the encoder alone is a shorter list.
    """
    for layer, (weights, bias, output) in enumerate(zip(*layers, outputs, strict=False)):
        np.matmul(inputs, weights, out=output)
        np.add(output, bias, out=output)
        if layer not in linear:
            np.maximum(output, 0, out=output)
        inputs = output


def backward(
    layers: Layers,
    gradients: Layers,
    inputs: FloatArray,
    outputs: Sequence[FloatArray],
    deltas: Sequence[FloatArray],
    linear: frozenset[int],
) -> None:
    """Write the loss's gradient to `gradients`, given the outputs of `forward` and `deltas[-1]`.

    `deltas[l]` (rows, width) is the loss's derivative by the output of layer l before its ReLU; the earlier ones are
    written here. At exactly zero the derivative of ReLU is taken as zero.
    """
    for layer in reversed(range(len(outputs))):
        below = outputs[layer - 1] if layer else inputs
        np.matmul(below.T, deltas[layer], out=gradients.weights[layer])
        np.add.reduce(deltas[layer], axis=0, out=gradients.biases[layer])
        if layer:
            np.matmul(deltas[layer], layers.weights[layer].T, out=deltas[layer - 1])
            if layer - 1 not in linear:
                np.multiply(deltas[layer - 1], below > 0, out=deltas[layer - 1])


def encode(arch: Architecture, parameters: FloatArray, samples: FloatArray) -> FloatArray:
    """Return the codes E(x) of `samples` (N, d_x), shape (N, d_z)."""
    return _forward_in_blocks(arch, parameters, samples, arch.latent_layer)


def reconstruct(arch: Architecture, parameters: FloatArray, samples: FloatArray) -> FloatArray:
    """Return D(E(x)) of `samples` (N, d_x), shape (N, d_x)."""
    return _forward_in_blocks(arch, parameters, samples, len(arch.widths) - 2)


def _forward_in_blocks(arch: Architecture, parameters: FloatArray, samples: FloatArray, last: int) -> FloatArray:
    """Return the output of layer `last` for all rows; only BLOCK_ROWS rows are inside the network at a time."""
    layers = arch.layers(parameters)
    result = np.empty((len(samples), arch.widths[last + 1]), parameters.dtype)
    rows = min(BLOCK_ROWS, len(samples))
    buffers = [np.empty((rows, width), parameters.dtype) for width in arch.widths[1 : last + 1]]
    # A record far from the training data may overflow; the caller sees inf or nan in its row and decides.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(samples), BLOCK_ROWS):
            block = samples[start : start + BLOCK_ROWS]
            outputs = [buffer[: len(block)] for buffer in buffers]
            forward(layers, block, [*outputs, result[start : start + len(block)]], arch.linear_layers)
    return result
