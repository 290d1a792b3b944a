"""Encoder and decoder as differentiable maps, from the flat parameter vector that devices use.

Everything is flat here: records (B, d_x), codes (B, d_z); a network that wants images reshapes inside.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edge_client.model.autoencoder import Architecture, FloatArray
from edge_client.model.checks import check_parameters
from edge_client.model.choice import architecture_for, trainer_for
from edge_client.model.convolutional import ConvolutionalArchitecture
from sim.attack.seen import Shape


@dataclass(frozen=True, slots=True)
class Halves:
    """An autoencoder cut at its code: `encode` (B, d_x) -> (B, d_z), `decode` back; `parameters` are its leaves."""

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    parameters: tuple[Tensor, ...]

    @property
    def device(self) -> torch.device:
        """Where its arguments must lie."""
        return self.parameters[0].device

    def reconstruct(self, x: Tensor) -> Tensor:
        """T(x) = D(E(x)) (eq. 9)."""
        return self.decode(self.encode(x))


def fresh_parameters(shape: Shape, rng: np.random.Generator) -> FloatArray:
    """Return untrained parameters (P,) of this shape, drawn as a device draws its own."""
    return trainer_for(shape.hyper, shape.input_dim).initial(rng).parameters


def halves(shape: Shape, parameters: FloatArray) -> Halves:
    """Return the network of this shape with these parameters (P,), copied and in their dtype.

    Raises ConfigError if the parameters belong to another shape.
    """
    arch = architecture_for(shape.hyper, shape.input_dim)
    check_parameters(parameters, arch.parameters)
    return dense(arch, parameters) if isinstance(arch, Architecture) else convolutional(arch, parameters)


def dense(arch: Architecture, parameters: FloatArray) -> Halves:
    """Return the tabular autoencoder, on the CPU: it is too small to gain from another device."""
    layers = arch.layers(parameters)
    weights = [torch.tensor(W, requires_grad=True) for W in layers.weights]
    biases = [torch.tensor(b, requires_grad=True) for b in layers.biases]
    cut, end = arch.latent_layer + 1, len(weights)

    def run(values: Tensor, first: int, last: int) -> Tensor:
        for layer in range(first, last):
            values = torch.addmm(biases[layer], values, weights[layer])
            if layer not in arch.linear_layers:
                values = torch.relu(values)
        return values

    return Halves(lambda x: run(x, 0, cut), lambda z: run(z, cut, end), (*weights, *biases))


def convolutional(arch: ConvolutionalArchitecture, parameters: FloatArray) -> Halves:
    """Return the image autoencoder, on CUDA when there is some."""
    from edge_client.model.convolutional_trainer import cut, forward

    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weights = [part.clone().requires_grad_() for part in cut(arch, torch.tensor(parameters, device=where))]
    middle = len(arch.encoder)

    def encode(x: Tensor) -> Tensor:
        images = x.reshape(-1, *arch.image)
        return forward(arch.encoder, weights[: 2 * middle], images, linear=middle - 1).flatten(1)

    def decode(z: Tensor) -> Tensor:
        codes = z.reshape(-1, *arch.latent_shape)
        return forward(arch.decoder, weights[2 * middle :], codes, linear=len(arch.decoder) - 1).flatten(1)

    return Halves(encode, decode, tuple(weights))
