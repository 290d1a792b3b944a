"""What a device can do to its codes before they go up. Beyond the paper, which leaves it to future work.

Each function takes codes (L, d_z) and returns codes of the same shape; they compose. Fewer codes are no function:
`upload_fraction` says how many there are.

What may be claimed. `clip_and_noise` is the Gaussian mechanism on each code *with the encoder taken as fixed*. But the
encoder was trained on all of the device's records, so one record moves all L codes: for a guarantee about records the
sensitivity is that of the whole upload, 2 * clip * sqrt(L), and `noise_for_upload` gives the noise it takes.
`rotate` is no privacy in any formal sense: it hides the coordinates from whoever lacks the secret.
"""

from hashlib import blake2b
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from edge_client.model.autoencoder import FloatArray

KEY_BYTES = 16
"""Shortest secret that is worth the name."""


def clip(codes: FloatArray, norm: float) -> FloatArray:
    """Scale down each code whose L2 norm is above `norm`."""
    if not 0.0 < norm < np.inf:
        raise ConfigError(f"clip: {norm}; use a positive number")
    lengths = np.linalg.norm(codes.astype(np.float64), axis=1, keepdims=True)
    clipped: FloatArray = (codes * np.minimum(1.0, norm / np.maximum(lengths, np.finfo(np.float64).tiny))).astype(
        codes.dtype
    )
    return clipped


def clip_and_noise(codes: FloatArray, norm: float, sigma: float, rng: np.random.Generator) -> FloatArray:
    """Clip each code to L2 norm `norm` and add N(0, sigma^2) to each of its numbers."""
    if not 0.0 <= sigma < np.inf:
        raise ConfigError(f"noise: sigma is {sigma}; use 0 or more")
    noisy: FloatArray = (clip(codes, norm) + rng.normal(0.0, sigma, codes.shape)).astype(codes.dtype)
    return noisy


def rotation(secret: bytes, round: int, latent_dim: int) -> NDArray[np.float64]:
    """Return the round's orthogonal matrix Q (d_z, d_z), uniform over all of them; a pure function of its arguments.

    All devices of a federation share `secret` and the server must not have it; the study's seed will not do, because
    the server draws that. A new Q each round also breaks the link between codes of one record across rounds.
    """
    if len(secret) < KEY_BYTES:
        raise ConfigError(f"rotation: a secret of {len(secret)} bytes can be guessed; use {KEY_BYTES} or more")
    key = int.from_bytes(blake2b(f"rotation|{round}".encode(), key=secret[:64], digest_size=16).digest(), "little")
    gaussian = np.random.Generator(np.random.PCG64(key)).standard_normal((latent_dim, latent_dim))
    Q, R = np.linalg.qr(gaussian)
    return Q * np.sign(np.diag(R))  # without the signs, QR favours some rotations (Mezzadri 2007)


def rotate(codes: FloatArray, Q: NDArray[np.float64]) -> FloatArray:
    """Return Q z for each code: distances are kept, so clusterings by distance or full covariance turn with them."""
    rotated: FloatArray = (codes @ Q.T).astype(codes.dtype)
    return rotated


def rotate_back(centroids: FloatArray, Q: NDArray[np.float64]) -> FloatArray:
    """Return Q^T mu for each centroid that comes down."""
    return rotate(centroids, Q.T)


def noise_for_upload(epsilon: float, delta: float, *, norm: float, codes: int, rounds: int) -> float:
    """Return the sigma of `clip_and_noise` that makes all uploads of one device (epsilon, delta)-DP for one record.

    Neighbours differ in one record, which may move all `codes` vectors of a round anywhere within the clip: L2
    sensitivity 2 * norm * sqrt(codes). Over `rounds` adaptive releases this is zero-concentrated DP with
    rho = rounds * sensitivity^2 / (2 sigma^2), and (rho + 2 sqrt(rho log(1/delta)), delta)-DP (Bun and Steinke 2016,
    Lemmas 1.7 and 2.4, Proposition 1.3). No amplification by sampling is claimed.
    """
    if not (epsilon > 0.0 and 0.0 < delta < 1.0 and codes >= 1 and rounds >= 1):
        raise ConfigError(f"noise: no guarantee for epsilon {epsilon}, delta {delta}, {codes} codes, {rounds} rounds")
    root_rho = sqrt(log(1.0 / delta) + epsilon) - sqrt(log(1.0 / delta))
    return 2.0 * norm * sqrt(codes) * sqrt(rounds / 2.0) / root_rho
