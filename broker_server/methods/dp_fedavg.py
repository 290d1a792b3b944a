"""DP-FedAvg, the server half (McMahan et al., ICLR 2018; the paper's appendix, "DP-FedAvg").

theta_r + sum_i p_i min(1, clip / ||theta_i - theta_r||) (theta_i - theta_r) + N(0, (sigma / C)^2). The norm is L2
over the whole update of a device, all tensors together. C is the number of updates in the aggregate, which with full
participation is the number of devices. The server sees every update as it is, and nobody accounts for the
composition over rounds: this is the paper's noisy baseline and certifies no (epsilon, delta).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from broker_server.methods.averaging import Vector, sample_shares
from broker_server.methods.base import Upload
from broker_server.methods.fedavg import FedAvgServer
from edge_client.seeds import stream


@dataclass(frozen=True)
class DpFedAvgServer(FedAvgServer):
    """Averages clipped updates and adds noise: a_i = p_i min(1, clip_norm / ||delta_i||).

    `noise_multiplier` is sigma.
    """

    clip_norm: float = 1.0
    noise_multiplier: float = 1.0

    def weights(
        self, uploads: Mapping[str, Upload], theta_r: NDArray[np.float32]
    ) -> tuple[dict[str, Fraction], dict[str, object]]:
        p = sample_shares(uploads)
        norms = {device: _distance(upload.arrays["parameters"], theta_r) for device, upload in uploads.items()}
        weights = {device: p[device] * Fraction(self.clip_factor(norms[device])) for device in uploads}
        return weights, {"update_norms": norms, "clipped": sum(norm > self.clip_norm for norm in norms.values())}

    def clip_factor(self, norm: float) -> float:
        """Return what an update of this L2 norm is multiplied with, so that its norm is at most `clip_norm`."""
        return 1.0 if norm <= self.clip_norm else self.clip_norm / norm

    def perturb(self, theta: Vector, round: int, clients: int) -> Vector:
        if self.noise_multiplier == 0:
            return theta
        noise = stream(self.seed, "dp", round).standard_normal(len(theta))
        return theta + noise * (self.noise_multiplier / clients)


def _distance(theta: NDArray[np.float32], theta_r: NDArray[np.float32]) -> float:
    """Return ||theta - theta_r||. Summed by numpy, not by BLAS, whose rounding depends on its threads."""
    delta = np.subtract(theta, theta_r, dtype=np.float64)
    return float(np.sqrt(np.sum(delta * delta)))
