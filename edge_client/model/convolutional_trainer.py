"""The trainer of the convolutional autoencoder: forward, backward and Adam in torch, behind the Trainer seam.

This is the one place of the device that imports torch, and only a study of images imports this module. Samples come
and codes go as flat rows; parameters and moments are the flat vectors of `edge_client.model.convolutional`. A GPU is
used when there is one.

Each call computes with one thread, whatever the machine has: sums then do not depend on the number of cores, and a
fleet trains one device per core, which is faster than several cores on one device.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d

from edge_client.model import checks
from edge_client.model.adam import BETA1, BETA2, EPSILON
from edge_client.model.autoencoder import FloatArray
from edge_client.model.convolutional import ConvolutionalArchitecture, ConvolutionalLayer, initial_parameters
from edge_client.model.trainer import ModelState

BLOCK_ROWS = 250
"""Images per forward pass outside training: about 60 MB of activations."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of mallopt, from glibc's malloc.h."""
KEEP_BYTES = 2**30


@cache
def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for the next step instead of returning it; say whether it did.

    Activations are megabytes each. By default every one is mapped afresh, cleared by the kernel page by page and
    unmapped again, which takes a third of a step. Both settings are needed: blocks no longer go through mmap, and
    the top of the heap is not trimmed between steps. Values computed do not change. Once per process; elsewhere
    than on glibc nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, KEEP_BYTES))


def forward(layers: Sequence[ConvolutionalLayer], weights: Sequence[Tensor], images: Tensor, *, linear: int) -> Tensor:
    """Return what comes out of `layers`, whose kernels and biases take turns in `weights`.

    ReLU follows every layer but the last and the one of index `linear`.
    """
    for number, layer in enumerate(layers):
        kernel, bias = weights[2 * number : 2 * number + 2]
        if layer.transposed:  # output_padding makes stride 2 double the sides exactly
            images = conv_transpose2d(images, kernel, bias, layer.stride, 1, layer.stride - 1)
        else:
            images = conv2d(images, kernel, bias, layer.stride, 1)
        if number not in (linear, len(layers) - 1):
            images = images.relu_()
    return images


class _Phase:
    """The memory of one local phase: a copy of the state to move, as tensors on the computing device."""

    def __init__(
        self,
        arch: ConvolutionalArchitecture,
        state: ModelState,
        samples: FloatArray,
        device: torch.device,
        *,
        encoder_only: bool,
    ) -> None:
        self.arch, self.device, self.encoder_only = arch, device, encoder_only
        self.layers = arch.encoder if encoder_only else arch.layers
        self.samples = torch.tensor(samples, device=device).reshape(-1, *arch.image)
        vectors = (state.parameters, state.first_moment, state.second_moment)
        self.parameters, self.first_moment, self.second_moment = (torch.tensor(v, device=device) for v in vectors)
        self.encoder_steps, self.decoder_steps, self.epochs = state.encoder_steps, state.decoder_steps, state.epochs
        self.weights = [weight.requires_grad_() for weight in cut(arch, self.parameters)[: 2 * len(self.layers)]]

    def batches(self, order: NDArray[np.integer[Any]], batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the minibatches of one epoch: images, and what comes out of the layers that move."""
        places = torch.tensor(order, dtype=torch.int64, device=self.device)
        for start in range(0, len(order), batch_size):
            images = self.samples[places[start : start + batch_size]]
            yield images, forward(self.layers, self.weights, images, linear=len(self.arch.encoder) - 1)

    def descend(self, loss: Tensor, learning_rate: float, proximal: tuple[float, Tensor] | None = None) -> None:
        """Take one Adam step against the gradient of `loss`, plus that of mu ||theta - anchor||^2."""
        gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, self.weights)])
        moving = len(gradient)
        if proximal is not None:
            mu, anchor = proximal
            gradient.add_(self.parameters[:moving] - anchor[:moving], alpha=2.0 * mu)
        encoder = slice(0, self.arch.encoder_parameters)
        self.encoder_steps += 1
        self._adam(encoder, gradient[encoder], self.encoder_steps, learning_rate)
        if not self.encoder_only:
            decoder = slice(encoder.stop, moving)
            self.decoder_steps += 1
            self._adam(decoder, gradient[decoder], self.decoder_steps, learning_rate)

    def _adam(self, block: slice, gradient: Tensor, step: int, learning_rate: float) -> None:
        """One step of Adam as torch.optim.Adam takes it, operation by operation, so that bits can be compared."""
        first, second = self.first_moment[block], self.second_moment[block]
        first.lerp_(gradient, 1.0 - BETA1)
        second.mul_(BETA2).addcmul_(gradient, gradient, value=1.0 - BETA2)
        root = second.sqrt().div_(sqrt(1.0 - BETA2**step)).add_(EPSILON)
        with torch.no_grad():
            self.parameters[block].addcdiv_(first, root, value=-learning_rate / (1.0 - BETA1**step))

    def state(self, epochs: int) -> ModelState:
        """Return the state after so many more epochs."""
        vectors = (self.parameters, self.first_moment, self.second_moment)
        parameters, first, second = (vector.cpu().numpy() for vector in vectors)
        return ModelState(parameters, first, second, self.encoder_steps, self.decoder_steps, self.epochs + epochs)


def cut(arch: ConvolutionalArchitecture, flat: Tensor) -> list[Tensor]:
    """Return the kernels and biases of all layers, in turns, as views into the parameter vector."""
    parts = []
    for layer, kernel, bias in arch.slices():
        parts += [flat[kernel].view(layer.kernel_shape), flat[bias]]
    return [part.detach() for part in parts]


def nearest_centroids(codes: Tensor, centroids: Tensor) -> Tensor:
    """Return argmin_k ||z_b - mu_k|| for `codes` (B, d_z) and `centroids` (K, d_z), shape (B,); ties to the lowest k.

    Differences are squared, not expanded into products, which in float32 cancel to noise far from the origin; and no
    root is taken, which would make neighbours equal.
    """
    return (codes[:, None] - centroids).square().sum(dim=2).argmin(dim=1)


def _end(name: str, phase: _Phase, losses: Tensor) -> tuple[ModelState, NDArray[np.float64]]:
    state, per_epoch = phase.state(len(losses)), losses.cpu().numpy()
    checks.check_still_finite(name, state.parameters, per_epoch)
    return state, per_epoch


@dataclass(frozen=True, slots=True)
class ConvolutionalTrainer:
    """Trains and scores with one convolutional architecture. See `edge_client.model.trainer.Trainer`."""

    architecture: ConvolutionalArchitecture
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    @property
    def latent_dim(self) -> int:
        return self.architecture.latent_dim

    @property
    def parameter_count(self) -> int:
        return self.architecture.parameters

    @property
    def flops(self) -> float:
        return self.architecture.flops

    @property
    def encoder_flops(self) -> float:
        return self.architecture.encoder_flops

    def initial(self, rng: np.random.Generator) -> ModelState:
        return ModelState.fresh(initial_parameters(self.architecture, rng))

    def reconstruct(
        self,
        state: ModelState,
        samples: FloatArray,
        orders: NDArray[np.integer[Any]],
        *,
        batch_size: int,
        learning_rates: NDArray[np.float64],
        proximal: tuple[float, FloatArray] | None = None,
    ) -> tuple[ModelState, NDArray[np.float64]]:
        self._check_training(state, samples, orders, learning_rates, batch_size)
        if proximal is not None:
            checks.check_parameters(proximal[1], self.parameter_count)
        phase = self._begin(state, samples, encoder_only=False)
        pull = None if proximal is None else (proximal[0], torch.tensor(proximal[1], device=self.device))
        losses = torch.zeros(len(orders), dtype=torch.float64, device=self.device)
        for epoch, (order, learning_rate) in enumerate(zip(orders, learning_rates, strict=True)):
            for images, reconstructed in phase.batches(order, batch_size):
                total = (reconstructed - images).square().sum()
                phase.descend(total / len(images), learning_rate, pull)
                losses[epoch] += total.detach()  # fetched at the end, lest a GPU waits for every step
        return _end("reconstruction", phase, losses / orders.shape[1])

    def align(
        self,
        state: ModelState,
        samples: FloatArray,
        orders: NDArray[np.integer[Any]],
        *,
        centroids: FloatArray,
        weights: FloatArray,
        batch_size: int,
        learning_rates: NDArray[np.float64],
    ) -> tuple[ModelState, NDArray[np.float64]]:
        self._check_training(state, samples, orders, learning_rates, batch_size)
        checks.check_centroids(centroids, self.latent_dim)
        checks.check_per_centroid(weights, len(centroids), "weights")
        phase = self._begin(state, samples, encoder_only=True)
        mu, w = (torch.tensor(a, dtype=phase.parameters.dtype, device=self.device) for a in (centroids, weights))
        losses = torch.zeros(len(orders), dtype=torch.float64, device=self.device)
        for epoch, (order, learning_rate) in enumerate(zip(orders, learning_rates, strict=True)):
            for images, latent in phase.batches(order, batch_size):
                codes = latent.flatten(1)
                nearest = nearest_centroids(codes.detach(), mu)
                total = (w[nearest] * (codes - mu[nearest]).square().sum(dim=1)).sum()
                phase.descend(total / len(images), learning_rate)
                losses[epoch] += total.detach()
        return _end("alignment", phase, losses / orders.shape[1])

    def encode(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        blocks = self._blocks(parameters, samples, self.architecture.encoder)
        return np.concatenate([codes.flatten(1).cpu().numpy() for _, codes in blocks])

    @property
    def block_rows(self) -> int:
        return BLOCK_ROWS

    def score(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        blocks = self._blocks(parameters, samples, self.architecture.layers)
        errors = [(out - images).square_().flatten(1).sum(dim=1).cpu().numpy() for images, out in blocks]
        scores: FloatArray = np.concatenate(errors)
        scores[np.isnan(scores)] = np.inf  # inf - inf somewhere on the way: as far from normal as can be
        return scores

    def _blocks(
        self, parameters: FloatArray, samples: FloatArray, layers: Sequence[ConvolutionalLayer]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and what `layers` make of them, BLOCK_ROWS at a time."""
        checks.check_parameters(parameters, self.parameter_count)
        checks.check_samples(samples, self.architecture.input_dim, parameters.dtype)
        self._prepare()
        weights = cut(self.architecture, torch.tensor(parameters, device=self.device))
        with torch.no_grad():
            for start in range(0, len(samples), BLOCK_ROWS):
                block = torch.tensor(samples[start : start + BLOCK_ROWS], device=self.device)
                images = block.reshape(-1, *self.architecture.image)
                yield images, forward(layers, weights, images, linear=len(self.architecture.encoder) - 1)

    def _begin(self, state: ModelState, samples: FloatArray, *, encoder_only: bool) -> _Phase:
        self._prepare()
        return _Phase(self.architecture, state, samples, self.device, encoder_only=encoder_only)

    def _prepare(self) -> None:
        """Set what torch keeps per thread or per process; every call does, since pools bring threads of their own."""
        torch.set_num_threads(1)
        if self.device.type == "cuda":
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        else:
            keep_freed_memory()

    def _check_training(
        self,
        state: ModelState,
        samples: FloatArray,
        orders: NDArray[np.integer[Any]],
        learning_rates: NDArray[np.float64],
        batch_size: int,
    ) -> None:
        checks.check_parameters(state.parameters, self.parameter_count)
        checks.check_parameters(state.first_moment, self.parameter_count)
        checks.check_parameters(state.second_moment, self.parameter_count)
        checks.check_samples(samples, self.architecture.input_dim, state.parameters.dtype)
        checks.check_epochs(orders, learning_rates, batch_size, len(samples))
