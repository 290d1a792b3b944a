"""What a device can do to its codes before they go up. Beyond the paper, which leaves it to future work.

Stages like those of a codec, each with what it does to codes (L, d_z) on their way up and to centroids (K, d_z) on
their way down; `defences` makes those that a run asks for, in the order in which codes pass them. Fewer codes are no
stage: `upload_fraction` says how many there are.

What each is worth: `ClipAndNoise` is the Gaussian mechanism; `sim/guarantee.py` says what follows from it, which is
little. `Rotate` is no privacy in any formal sense: it hides the coordinates from whoever lacks the secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from edge_client.model.autoencoder import FloatArray
from edge_client.private_seeds import Secrets, private_stream


class Defence(Protocol):
    """One stage. Stateless: all that changes with the round follows from its number."""

    def up(self, codes: FloatArray, round: int) -> FloatArray:
        """Return codes of the same shape and dtype, as they leave the device."""
        ...

    def down(self, centroids: FloatArray, round: int) -> FloatArray:
        """Return centroids of the same shape and dtype in the device's own coordinates."""
        ...


def defences(hyper: Hyperparameters, secrets: Secrets) -> Sequence[Defence]:
    """Return the stages of a run; raises `ConfigError` where this device lacks the secret that one of them takes."""
    stages: list[Defence] = []
    if hyper.code_noise and hyper.code_clip is None:
        raise ConfigError("training.code_noise: is in units of training.code_clip, which is missing; set that, too")
    if hyper.code_clip is not None:
        stages.append(ClipAndNoise(hyper.code_clip, hyper.code_noise * hyper.code_clip, secrets.own))
    if hyper.code_rotation:
        if secrets.shared is None:
            raise ConfigError(
                "training.code_rotation: takes a secret that all devices share and the server has not; "
                "start each device with --secret FILE"
            )
        stages.append(Rotate(secrets.shared))
    return stages


def in_words(hyper: Hyperparameters) -> str:
    """Say what is done to the codes of a run; nothing if nothing is."""
    words = []
    if hyper.code_clip is not None:
        words.append(f"clipped to length {hyper.code_clip:g}")
    if hyper.code_noise and hyper.code_clip is not None:
        words.append(f"noise of standard deviation {hyper.code_noise * hyper.code_clip:g} on each of their numbers")
    if hyper.code_rotation:
        words.append("rotated anew each round by a secret of the devices")
    return ", ".join(words)


@dataclass(frozen=True, repr=False)
class ClipAndNoise:
    """Scale down each code whose L2 norm is above `norm`, then add N(0, sigma^2) to each number, keyed by `secret`."""

    norm: float
    sigma: float
    secret: bytes

    def up(self, codes: FloatArray, round: int) -> FloatArray:
        clipped = clip(codes, self.norm)
        if self.sigma == 0.0:
            return clipped
        noisy: FloatArray = clipped + private_stream(self.secret, "noise", round).normal(0.0, self.sigma, codes.shape)
        return noisy.astype(codes.dtype)

    def down(self, centroids: FloatArray, round: int) -> FloatArray:
        return centroids


@dataclass(frozen=True, repr=False)
class Rotate:
    """Turn codes by the round's rotation, z -> Q z, and centroids back.

    Distances are kept, so clusterings by distance or full covariance turn with the codes. A new Q each round also
    breaks the link between codes of one record across rounds.
    """

    secret: bytes

    def up(self, codes: FloatArray, round: int) -> FloatArray:
        rotated: FloatArray = (codes @ rotation(self.secret, round, codes.shape[1]).T).astype(codes.dtype)
        return rotated

    def down(self, centroids: FloatArray, round: int) -> FloatArray:
        back: FloatArray = (centroids @ rotation(self.secret, round, centroids.shape[1])).astype(centroids.dtype)
        return back


def clip(codes: FloatArray, norm: float) -> FloatArray:
    """Scale down each code whose L2 norm is above `norm`."""
    lengths = np.linalg.norm(codes.astype(np.float64), axis=1, keepdims=True)
    factors = np.minimum(1.0, norm / np.maximum(lengths, np.finfo(np.float64).tiny))
    clipped: FloatArray = (codes * factors).astype(codes.dtype)
    return clipped


@lru_cache(maxsize=4)  # devices emulated in one process turn alike, and each both ways; 8 MB for codes of 1,024
def rotation(secret: bytes, round: int, latent_dim: int) -> NDArray[np.float64]:
    """Return the round's orthogonal matrix Q (d_z, d_z), uniform over all of them; a pure function of its arguments."""
    gaussian = private_stream(secret, "rotation", round).standard_normal((latent_dim, latent_dim))
    Q, R = np.linalg.qr(gaussian)
    Q *= np.sign(np.diag(R))  # without the signs, QR favours some rotations (Mezzadri 2007)
    Q.setflags(write=False)
    return Q
