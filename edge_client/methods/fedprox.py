"""FedProx, the device half (Li et al., MLSys 2020, Algorithm 2; the paper's appendix, "FedProx").

The local objective is the reconstruction loss + mu ||theta_i - theta_r||^2 with mu = `proximal_mu`. The original
writes mu/2; the paper configures 1e-2 and says that 1e-4 is what takes effect, and that is what is meant here.
"""

from dataclasses import dataclass

from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.fedavg import FedAvg
from edge_client.model.autoencoder import FloatArray


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose local objective holds the model near theta_r, the one that the round began with."""

    def proximal(self, theta_r: FloatArray, hyper: Hyperparameters) -> tuple[float, FloatArray] | None:
        return hyper.proximal_mu, theta_r
