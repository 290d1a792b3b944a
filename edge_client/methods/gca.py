"""Global Centroid Alignment, the device half: phases 1 and 3 of Algorithm 1.

Each function names the lines of the algorithm, or the equation, that it states. Phase 2, the clustering of the
pooled codes, is the server's half.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError, GcaError, ProtocolError
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Arrays, Epochs
from edge_client.methods.context import LocalContext, initial_state, run_epochs
from edge_client.model.autoencoder import FloatArray
from edge_client.model.checks import check_centroids, check_per_centroid
from edge_client.model.trainer import ModelState
from edge_client.seeds import stream
from edge_client.words import counted


@dataclass(frozen=True)
class Gca:
    """GCA as a DeviceMethod: {"latents": (L, d_z)} goes up, {"centroids": (K, d_z), "support": (K,)} comes down."""

    hears_all_broadcasts: bool = False
    stages: tuple[str, str] = ("reconstruction", "alignment")

    def epochs(self, hyper: Hyperparameters) -> Epochs:
        return Epochs(hyper.recon_epochs, hyper.align_epochs)

    def initial(self, context: LocalContext) -> ModelState:
        return initial_state(context)  # line 1

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        chosen = select_upload(context)  # first, so that a device with nothing to upload says so before it trains
        state = reconstruction_phase(state, context, epochs=context.hyper.recon_epochs)
        latents = context.trainer.encode(state.parameters, context.samples[chosen])  # line 17
        if not np.isfinite(latents).all():
            raise GcaError(f"device {context.device}: codes are not finite; standardise the features")
        return state, {"latents": latents}  # line 18

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        centroids, support = read_broadcast(broadcast, context.trainer.latent_dim)
        return alignment_phase(state, context, centroids, support)


def reconstruction_phase(
    state: ModelState, context: LocalContext, *, epochs: int, proximal: tuple[float, FloatArray] | None = None
) -> ModelState:
    """Lines 6-13: `epochs` epochs on the reconstruction loss (eq. 2); encoder and decoder move.

    Methods that share parameters run the same phase; FedProx adds `proximal` = (mu, anchor), see `Trainer`.
    """
    return run_epochs(
        state,
        context,
        "recon",
        epochs,
        lambda state, orders, rates: context.trainer.reconstruct(
            state,
            context.samples,
            orders,
            batch_size=context.hyper.batch_size,
            learning_rates=rates,
            proximal=proximal,
        ),
    )


@lru_cache(maxsize=4096)  # the server asks for each of a thousand devices, by what they say of themselves
def upload_size(upload_fraction: float, records: int) -> int:
    """Line 16: floor(rho * N), with rho read as the decimal it was written as.

    In binary, 0.29 * 100 is 28.999999999999996, and its floor would lose a record.
    """
    return floor(Fraction(repr(float(upload_fraction))) * records)


def select_upload(context: LocalContext) -> NDArray[np.int64]:
    """Line 16: the index set I_i, floor(rho * N) records drawn uniformly without replacement.

    Raises ConfigError when that is none.
    """
    records, fraction = len(context.samples), context.hyper.upload_fraction
    size = upload_size(fraction, records)
    if size == 0:
        raise ConfigError(
            f"device {context.device}: upload_fraction {fraction} of {counted(records, 'record')} is less than one "
            "code; raise upload_fraction or give the device more records"
        )
    return stream(context.seed, "upload", context.round, context.device).choice(records, size, replace=False)


def read_broadcast(broadcast: Arrays, latent_dim: int) -> tuple[FloatArray, FloatArray]:
    """Line 24, received: return (mu, N) of shapes (K, d_z) and (K,); ProtocolError unless both are usable."""
    if broadcast.keys() != {"centroids", "support"}:
        raise ProtocolError(f"broadcast: expected centroids and support, got {sorted(broadcast)}")
    centroids, support = broadcast["centroids"], broadcast["support"]
    check_centroids(centroids, latent_dim)
    check_per_centroid(support, len(centroids), "support")
    return centroids, support


def inverse_support_weights(
    support: FloatArray, *, gamma: float, max_weight: float, epsilon: float
) -> NDArray[np.float64]:
    """Lines 27-28 (eq. 4): weights w_k of shape (K,) that lift small clusters, from supports N_k.

    By hand, with gamma = 1, w_max = 6 and a negligible epsilon: N = (1, 9, 20) has mean 10, so that
    N_bar / N = (10, 10/9, 1/2) and w_tilde = (6, 10/9, 1/2), with mean 137/54; w = (324, 60, 27) / 137.
    """
    N_hat = np.maximum(support.astype(np.float64), epsilon)
    with np.errstate(over="ignore", under="ignore"):  # an overflowing ratio is cut to w_max
        w_tilde = np.minimum(max_weight, (N_hat.mean() / N_hat) ** gamma)
    weights: NDArray[np.float64] = w_tilde / (w_tilde.mean() + epsilon)
    return weights


def uniform_weights(support: FloatArray) -> NDArray[np.float64]:
    """The paper's ablation: w_k = 1, shape (K,)."""
    return np.ones(len(support))


def alignment_phase(state: ModelState, context: LocalContext, centroids: FloatArray, support: FloatArray) -> ModelState:
    """Lines 27-36: T_align epochs on the alignment loss (eq. 5); mu and w stay put, only the encoder moves."""
    hyper = context.hyper
    if hyper.weighting == "uniform":
        weights = uniform_weights(support)
    else:
        weights = inverse_support_weights(
            support, gamma=hyper.gamma, max_weight=hyper.max_weight, epsilon=hyper.epsilon
        )
    return run_epochs(
        state,
        context,
        "align",
        hyper.align_epochs,
        lambda state, orders, rates: context.trainer.align(
            state,
            context.samples,
            orders,
            centroids=centroids,
            weights=weights,
            batch_size=hyper.batch_size,
            learning_rates=rates,
        ),
    )
