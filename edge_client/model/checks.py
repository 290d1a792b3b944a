"""What training and scoring ask of their arguments; every precondition of the numerical half is checked here.

A device's own records and settings raise ConfigError, what a peer sent raises ProtocolError.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError, GcaError, ProtocolError
from edge_client.model.autoencoder import FloatArray
from edge_client.words import counted


def check_samples(samples: NDArray[Any], input_dim: int, dtype: np.dtype[Any]) -> None:
    """Require a finite (N, d_x) array of the model's dtype with N >= 1."""
    if samples.ndim != 2 or samples.shape[1] != input_dim:
        raise ConfigError(f"samples: expected shape (N, {input_dim}), got {samples.shape}; check the feature columns")
    if len(samples) == 0:
        raise ConfigError("samples: no records; give this device at least one")
    if samples.dtype != dtype:
        raise ConfigError(f"samples: dtype {samples.dtype}, the model has {dtype}; convert with samples.astype")
    if not np.isfinite(samples).all():
        row = int(np.flatnonzero(~np.isfinite(samples).all(axis=1))[0])
        raise ConfigError(f"samples: record {row} holds NaN or infinity; clean or drop it")


def check_epochs(orders: NDArray[Any], learning_rates: NDArray[Any], batch_size: int, count: int) -> None:
    """Require at least one epoch: an order of record indices in [0, count) each, and a positive, finite rate each."""
    if orders.ndim != 2 or orders.size == 0 or not np.issubdtype(orders.dtype, np.integer):
        raise ConfigError(
            f"orders: expected integers of shape (epochs, records), neither zero, "
            f"got {orders.dtype} of shape {orders.shape}"
        )
    if orders.min() < 0 or orders.max() >= count:
        raise ConfigError(f"orders: holds an index outside the {counted(count, 'record')}")
    if learning_rates.shape != (len(orders),):
        raise ConfigError(f"learning_rates: {learning_rates.shape} for {len(orders)} epochs; give each epoch one")
    if not ((learning_rates > 0.0) & (learning_rates < np.inf)).all():
        raise ConfigError(f"learning_rate: {learning_rates}; use positive numbers")
    if batch_size < 1:
        raise ConfigError(f"batch_size: {batch_size}; use 1 or more")


def check_parameters(parameters: NDArray[Any], length: int) -> None:
    """Require one flat float32 or float64 vector of the architecture's length."""
    if parameters.shape != (length,) or parameters.dtype not in (np.float32, np.float64):
        raise ConfigError(
            f"parameters: expected float32 of shape ({length},), got {parameters.dtype} of shape {parameters.shape}; "
            "the model belongs to another architecture"
        )


def check_centroids(centroids: NDArray[Any], latent_dim: int) -> None:
    """Require a finite (K, d_z) array of floats with K >= 1."""
    if centroids.ndim != 2 or centroids.shape[1] != latent_dim or len(centroids) == 0:
        raise ProtocolError(f"centroids: expected shape (K >= 1, {latent_dim}), got {centroids.shape}")
    _check_finite_floats(centroids, "centroids")


def check_per_centroid(values: NDArray[Any], components: int, name: str) -> None:
    """Require one finite, non-negative float per centroid (its support, or its weight)."""
    if values.shape != (components,):
        raise ProtocolError(f"{name}: expected one value for each of {components} centroids, got shape {values.shape}")
    _check_finite_floats(values, name)
    if (values < 0).any():
        raise ProtocolError(f"{name}: holds a negative value")


def _check_finite_floats(values: NDArray[Any], name: str) -> None:
    if not np.issubdtype(values.dtype, np.floating):
        raise ProtocolError(f"{name}: expected floats, got {values.dtype}")
    if not np.isfinite(values).all():
        raise ProtocolError(f"{name}: holds NaN or infinity")


KERNEL_PARAMETERS = 2**28
"""1 GB for each of the vectors of a state, and there are five."""
KERNEL_ACTIVATIONS = 2**30
KERNEL_LAYERS = 64


def check_kernel_path(path: str, available: Collection[str]) -> None:
    """Require an instruction set that this machine runs and the kernel was built for."""
    if path not in available:
        raise ConfigError(f"kernel: no {path} here, only {', '.join(available) or 'the numpy trainer'}")


def check_kernel_model(count: int, layers: int) -> None:
    """Require a model that the compiled kernel takes."""
    if layers > KERNEL_LAYERS:
        raise ConfigError(f"hidden: {layers} layers in all, the kernel takes {KERNEL_LAYERS}; name fewer widths")
    if count > KERNEL_PARAMETERS:
        raise ConfigError(f"hidden: {count} parameters, the kernel takes {KERNEL_PARAMETERS}; choose narrower layers")


def check_kernel_batch(rows: int, widths: Sequence[int]) -> None:
    """Require a minibatch whose activations the compiled kernel takes."""
    if rows * sum(widths) > KERNEL_ACTIVATIONS:
        raise ConfigError(f"batch_size: {counted(rows, 'record')} need {rows * sum(widths)} activations; lower it")


def check_single_precision(parameters: NDArray[Any]) -> None:
    """Require float32, the only precision of the compiled kernel."""
    if parameters.dtype != np.float32:
        raise ConfigError(f"parameters: {parameters.dtype}, the kernel takes float32; use the numpy trainer")


def check_still_finite(phase: str, parameters: FloatArray, losses: NDArray[np.float64]) -> None:
    """Require that training ended in finite numbers; what a wrong learning rate or scale breaks shows here first."""
    if not (np.isfinite(losses).all() and np.isfinite(parameters).all()):
        loss = losses[np.argmin(np.isfinite(losses))]
        raise GcaError(f"{phase}: training diverged (loss {loss}); standardise the features or lower learning_rate")
