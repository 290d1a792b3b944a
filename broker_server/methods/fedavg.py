"""Federated averaging, the server half (McMahan et al., AISTATS 2017, Algorithm 1; the paper's appendix, "FedAvg").

The aggregate is sum_i p_i theta_i with p_i = N_i / sum_j N_j over the devices whose upload came. N_i is what a device
says of itself, so one that lies about it moves the mean as far as it likes, as does one that uploads a poisoned
model: nothing here is meant to withstand that (`coordinate_median.py` and `trimmed_mean.py` are).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from broker_server.methods.averaging import Vector, as_broadcast, sample_shares, weighted_sum
from broker_server.methods.base import Aggregate, Sender, Upload
from edge_client.errors import GcaError, ProtocolError
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.fedavg import read_parameters
from edge_client.model.choice import architecture_for, trainer_for
from edge_client.protocol.codec import FP32, Arrays
from edge_client.seeds import SHARED, stream

MAX_PARAMETER = 1e6
"""Magnitude of a parameter that no trained autoencoder reaches. Within it no weighted sum leaves float32."""


@dataclass(frozen=True)
class FedAvgServer:
    """Averages the devices' models, weighted by their numbers of records. `hyper` and `seed` are the run's."""

    hyper: Hyperparameters
    seed: int
    broadcasts_to_all: bool = True

    def upload_limit(self, sender: Sender) -> int:
        return FP32 * _parameter_count(self.hyper, sender.input_dim)

    def check(self, sender: Sender, upload: Arrays) -> None:
        """{"parameters": (P,)}, finite float32 of at most `MAX_PARAMETER`."""
        theta = read_parameters(upload, _parameter_count(self.hyper, sender.input_dim))
        if (largest := float(np.abs(theta).max())) > MAX_PARAMETER:
            raise ProtocolError(f"a parameter of magnitude {largest:.3g} is no trained model's")

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None = None) -> Aggregate:
        theta_r = self.start(round, uploads, previous)
        weights, diagnostics = self.weights(uploads, theta_r)
        theta = self.perturb(weighted_sum(theta_r, uploads, weights), round, len(uploads))
        return Aggregate({"parameters": as_broadcast(theta)}, diagnostics)

    def start(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None) -> NDArray[np.float32]:
        """Return theta_r, the model that all devices began the round with: the last aggregate, or the shared one."""
        if previous is not None:
            return previous["parameters"]
        if round > 1:
            raise GcaError(f"the aggregate of round {round - 1} is lost; run the study again")
        trainer = trainer_for(self.hyper, next(iter(uploads.values())).input_dim)
        return trainer.initial(stream(self.seed, "init", 0, SHARED)).parameters

    def weights(
        self, uploads: Mapping[str, Upload], theta_r: NDArray[np.float32]
    ) -> tuple[dict[str, Fraction], dict[str, object]]:
        """Return a_i by device, of theta_r + sum_i a_i (theta_i - theta_r), and what is worth knowing: here p_i."""
        return sample_shares(uploads), {}

    def perturb(self, theta: Vector, round: int, clients: int) -> Vector:
        """Return the aggregate as it goes out: here as it is."""
        return theta


@lru_cache(maxsize=16)
def _parameter_count(hyper: Hyperparameters, input_dim: int) -> int:
    return architecture_for(hyper, input_dim).parameters
