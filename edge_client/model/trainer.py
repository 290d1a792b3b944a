"""The Trainer seam, the state it moves, and the portable trainer in numpy.

A trainer holds no state of its own: each call takes a `ModelState` and returns a new one, so one trainer serves any
number of devices and threads. `NumpyTrainer` is the reference that other trainers are compared with; with one BLAS
thread, equal arguments give equal bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_client.model import checks
from edge_client.model.adam import adam_step
from edge_client.model.autoencoder import (
    BLOCK_ROWS,
    Architecture,
    FloatArray,
    backward,
    encode,
    forward,
    initial_parameters,
    reconstruct,
)


@lru_cache(maxsize=8)
def _zeros(length: int, dtype: str) -> FloatArray:
    """Return moments before a first step, which nobody can write to."""
    zeros: FloatArray = np.zeros(length, dtype)
    zeros.flags.writeable = False
    return zeros


@dataclass(frozen=True, slots=True, eq=False)
class ModelState:
    """One device's model and optimiser. The three vectors share the layout of `edge_client.model.autoencoder`.

    The encoder and the decoder count their Adam steps apart, because alignment moves the encoder only. `epochs`
    counts local epochs of both phases.
    """

    parameters: FloatArray
    first_moment: FloatArray
    second_moment: FloatArray
    encoder_steps: int = 0
    decoder_steps: int = 0
    epochs: int = 0

    @classmethod
    def fresh(cls, parameters: FloatArray) -> "ModelState":
        """Return an untrained state: these parameters, and Adam before its first step."""
        zeros = _zeros(len(parameters), parameters.dtype.char)
        return cls(parameters, zeros, zeros)

    def with_fresh_optimizer(self) -> "ModelState":
        """Return this model with Adam before its first step; `epochs` goes on."""
        return replace(ModelState.fresh(self.parameters), epochs=self.epochs)


class Trainer(Protocol):
    """Local training and inference of one architecture.

    `samples` are (N, d_x) in the dtype of the parameters (float32 outside tests). `orders` (E, n) holds the record
    indices of each epoch, cut into minibatches of `batch_size`; the last may be shorter and counts as a step like
    the others. `learning_rates` (E,) has one per epoch. Arguments are never modified. The returned losses (E,) are
    the mean over the epoch's records of the data term, taken just before the step that used the record. E epochs in
    one call give the same bits as E calls of one epoch.

    Raises ConfigError for unusable records or settings, ProtocolError for unusable centroids, GcaError when training
    leaves the finite numbers.
    """

    @property
    def latent_dim(self) -> int:
        """Width d_z of a code."""
        ...

    @property
    def parameter_count(self) -> int:
        """Length P of the parameter vector."""
        ...

    @property
    def flops(self) -> float:
        """Arithmetic of one reconstruction epoch per record, forward and backward."""
        ...

    @property
    def encoder_flops(self) -> float:
        """Arithmetic of one alignment epoch per record, forward and backward."""
        ...

    def initial(self, rng: np.random.Generator) -> ModelState:
        """Draw an untrained state."""
        ...

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
        """Run E epochs on eq. 2: mean over the batch of ||x - D(E(x))||^2, summed over features.

        `proximal` = (mu, anchor) adds mu * ||theta - anchor||^2 to the objective (not to the returned losses).
        """
        ...

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
        """Run E epochs on eq. 5: mean over the batch of w_a * ||z - mu_a||^2, with a the nearest centroid.

        `centroids` (K, d_z) and `weights` (K,) are constants; a is found anew for every minibatch, ties go to the
        lowest index. Only the encoder, its moments and its step count move.
        """
        ...

    def encode(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        """Return the codes E(x), shape (N, d_z)."""
        ...

    @property
    def block_rows(self) -> int:
        """Records that `score` works on together, from the first on: a score has no bit from another block."""
        ...

    def score(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        """Return s(x) = ||x - D(E(x))||^2 (eq. 6), shape (N,); infinity where the model overflows."""
        ...


@dataclass(frozen=True, slots=True)
class DenseTrainer:
    """What the trainers of the tabular autoencoder share: its sizes, its first state, the checks."""

    architecture: Architecture

    @property
    def latent_dim(self) -> int:
        return self.architecture.latent_dim

    @property
    def parameter_count(self) -> int:
        return self.architecture.parameters

    @property
    def flops(self) -> float:
        return 6.0 * self.architecture.parameters  # 2 per weight forward, 4 backward

    @property
    def encoder_flops(self) -> float:
        return 6.0 * self.architecture.encoder_parameters

    def initial(self, rng: np.random.Generator) -> ModelState:
        return ModelState.fresh(initial_parameters(self.architecture, rng))

    def _check_training(
        self,
        state: ModelState,
        samples: FloatArray,
        orders: NDArray[np.integer[Any]],
        learning_rates: NDArray[np.float64],
        batch_size: int,
    ) -> None:
        self._check_model_and_samples(state.parameters, samples)
        checks.check_parameters(state.first_moment, self.parameter_count)
        checks.check_parameters(state.second_moment, self.parameter_count)
        checks.check_epochs(orders, learning_rates, batch_size, len(samples))

    def _check_model_and_samples(self, parameters: FloatArray, samples: FloatArray) -> None:
        checks.check_parameters(parameters, self.parameter_count)
        checks.check_samples(samples, self.architecture.input_dim, parameters.dtype)


class Batch(NamedTuple):
    """One minibatch: inputs (B, d_x), and per layer its output and the loss's derivative by it, (B, width)."""

    inputs: FloatArray
    outputs: list[FloatArray]
    deltas: list[FloatArray]

    def head(self, rows: int) -> "Batch":
        """Return views of the leading rows."""
        return Batch(self.inputs[:rows], [y[:rows] for y in self.outputs], [d[:rows] for d in self.deltas])


def reconstruction_loss(batch: Batch) -> float:
    """Return the batch's sum of ||x - x_hat||^2; write the derivative of its mean (eq. 2) to `deltas[-1]`."""
    error = batch.deltas[-1]
    np.subtract(batch.outputs[-1], batch.inputs, out=error)
    total = float(np.vdot(error, error))
    np.multiply(error, 2.0 / len(error), out=error)
    return total


def alignment_loss(batch: Batch, centroids: FloatArray, weights: FloatArray) -> float:
    """Return the batch's sum of w_a ||z - mu_a||^2; write the derivative of its mean (eq. 5) to `deltas[-1]`."""
    codes, error = batch.outputs[-1], batch.deltas[-1]
    nearest = nearest_centroids(codes, centroids)
    weight = weights[nearest]
    np.subtract(codes, centroids[nearest], out=error)
    total = float(np.vdot(weight, np.einsum("bd,bd->b", error, error)))
    np.multiply(error, (weight * (2.0 / len(error)))[:, None], out=error)
    return total


def nearest_centroids(codes: FloatArray, centroids: FloatArray) -> NDArray[np.intp]:
    """Return argmin_k ||z_b - mu_k|| for `codes` (B, d_z) and `centroids` (K, d_z), shape (B,); ties to the lowest k.

    Differences are squared, not expanded into ||z||^2 - 2 z mu + ||mu||^2, which in float32 cancels to noise when
    codes lie far from the origin and close to each other.
    """
    nearest = np.empty(len(codes), np.intp)
    for start in range(0, len(codes), BLOCK_ROWS):
        block = codes[start : start + BLOCK_ROWS]
        # (d_z, B, K): the sum over the leading axis runs along contiguous memory.
        difference = block.T[:, :, None] - centroids.T[:, None, :]
        np.multiply(difference, difference, out=difference)
        nearest[start : start + BLOCK_ROWS] = np.add.reduce(difference, axis=0).argmin(axis=1)
    return nearest


class _Phase:
    """The memory of a call: a copy of the state to write to, its gradient, and buffers that batches take turns in.

    Allocated once per call and shared with nobody: a step then allocates next to nothing, and threads do not meet.
    """

    def __init__(self, arch: Architecture, state: ModelState, rows: int, *, encoder_only: bool) -> None:
        self.linear = arch.linear_layers
        self.parameters = state.parameters.copy()
        self.first_moment = state.first_moment.copy()
        self.second_moment = state.second_moment.copy()
        self.encoder_steps, self.decoder_steps, self.epochs = state.encoder_steps, state.decoder_steps, state.epochs

        dtype = state.parameters.dtype
        self.encoder = slice(0, arch.encoder_parameters)
        self.decoder = slice(arch.encoder_parameters, arch.parameters)
        self.encoder_only = encoder_only
        self.moving = self.encoder if encoder_only else slice(0, arch.parameters)
        self.gradient = np.empty(self.moving.stop, dtype)
        self.scratch = np.empty(self.moving.stop, dtype)
        self.layers = arch.layers(self.parameters[self.moving])
        self.gradients = arch.layers(self.gradient)

        widths = arch.widths[1 : len(self.layers.weights) + 1]
        self.buffers = Batch(
            np.empty((rows, arch.input_dim), dtype),
            [np.empty((rows, width), dtype) for width in widths],
            [np.empty((rows, width), dtype) for width in widths],
        )

    def run(
        self,
        samples: FloatArray,
        orders: NDArray[np.integer[Any]],
        learning_rates: NDArray[np.float64],
        loss: Callable[[Batch], float],
        proximal: tuple[float, FloatArray] | None = None,
    ) -> NDArray[np.float64]:
        """Train on every order in turn; return the losses (E,)."""
        losses = np.zeros(len(orders))
        with np.errstate(over="ignore", invalid="ignore"):  # check_still_finite says it in words
            for epoch, order in enumerate(orders):
                for batch in self.batches(samples, order):
                    losses[epoch] += loss(batch)
                    self.descend(batch, float(learning_rates[epoch]), proximal)
                self.epochs += 1
        losses /= orders.shape[1]
        return losses

    def batches(self, samples: FloatArray, order: NDArray[np.integer[Any]]) -> Iterator[Batch]:
        """Yield the minibatches of `order`, each after its forward pass; the next one overwrites it."""
        rows = len(self.buffers.inputs)
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            batch = self.buffers if len(chosen) == rows else self.buffers.head(len(chosen))
            np.take(samples, chosen, axis=0, out=batch.inputs, mode="clip")  # in range already; "raise" would buffer
            forward(self.layers, batch.inputs, batch.outputs, self.linear)
            yield batch

    def descend(self, batch: Batch, learning_rate: float, proximal: tuple[float, FloatArray] | None = None) -> None:
        """Take one Adam step against the gradient that starts from `batch.deltas[-1]`."""
        backward(self.layers, self.gradients, batch.inputs, batch.outputs, batch.deltas, self.linear)
        if proximal is not None:
            mu, anchor = proximal
            np.subtract(self.parameters[self.moving], anchor[self.moving], out=self.scratch)
            np.multiply(self.scratch, 2.0 * mu, out=self.scratch)
            np.add(self.gradient, self.scratch, out=self.gradient)
        self.encoder_steps += 1
        self._adam(self.encoder, self.encoder_steps, learning_rate)
        if not self.encoder_only:
            self.decoder_steps += 1
            self._adam(self.decoder, self.decoder_steps, learning_rate)

    def _adam(self, block: slice, step: int, learning_rate: float) -> None:
        vectors = (self.parameters, self.first_moment, self.second_moment, self.gradient, self.scratch)
        adam_step(*(vector[block] for vector in vectors), step=step, learning_rate=learning_rate)

    def state(self) -> ModelState:
        """Return the state as it is now; the phase must not be used afterwards."""
        vectors = (self.parameters, self.first_moment, self.second_moment)
        return ModelState(*vectors, self.encoder_steps, self.decoder_steps, self.epochs)


@dataclass(frozen=True, slots=True)
class NumpyTrainer(DenseTrainer):
    """The trainer that needs nothing but numpy, with gradients derived by hand. See `Trainer`."""

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
        phase = _Phase(self.architecture, state, min(batch_size, orders.shape[1]), encoder_only=False)
        losses = phase.run(samples, orders, learning_rates, reconstruction_loss, proximal)
        checks.check_still_finite("reconstruction", phase.parameters, losses)
        return phase.state(), losses

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
        centroids, weights = (a.astype(state.parameters.dtype, copy=False) for a in (centroids, weights))
        phase = _Phase(self.architecture, state, min(batch_size, orders.shape[1]), encoder_only=True)
        loss = partial(alignment_loss, centroids=centroids, weights=weights)
        losses = phase.run(samples, orders, learning_rates, loss)
        checks.check_still_finite("alignment", phase.parameters, losses)
        return phase.state(), losses

    def encode(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        self._check_model_and_samples(parameters, samples)
        return encode(self.architecture, parameters, samples)

    @property
    def block_rows(self) -> int:
        return BLOCK_ROWS

    def score(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        self._check_model_and_samples(parameters, samples)
        error = reconstruct(self.architecture, parameters, samples)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(error, samples, out=error)
            scores: FloatArray = np.einsum("nd,nd->n", error, error)
        scores[np.isnan(scores)] = np.inf  # inf - inf somewhere on the way: as far from normal as can be
        return scores
