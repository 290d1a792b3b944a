"""Federated averaging, the device half (McMahan et al., AISTATS 2017, Algorithm 1; the paper's appendix, "FedAvg").

The server's half says what becomes of the uploads. All methods that share parameters have this device half: what
travels up is always theta_i, never a difference. The server knows theta_r and forms theta_i - theta_r in float64
itself, so that nothing is lost to a rounding on the way, and P numbers travel whatever the method.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ProtocolError
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Arrays, Epochs
from edge_client.methods.context import LocalContext, initial_state
from edge_client.methods.gca import reconstruction_phase
from edge_client.model.autoencoder import FloatArray
from edge_client.model.trainer import ModelState


@dataclass(frozen=True)
class FedAvg:
    """FedAvg as a DeviceMethod: {"parameters": (P,)} goes up, the aggregate of the same shape comes down.

    Adam's moments stay on the device. They are kept or reset between rounds as `optimizer` says.
    """

    hears_all_broadcasts: bool = True
    stages: tuple[str, str] = ("reconstruction", "adoption")

    def epochs(self, hyper: Hyperparameters) -> Epochs:
        return Epochs(hyper.local_epochs, 0)

    def initial(self, context: LocalContext) -> ModelState:
        return initial_state(context)

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        proximal = self.proximal(state.parameters, context.hyper)
        state = reconstruction_phase(state, context, epochs=context.hyper.local_epochs, proximal=proximal)
        return state, {"parameters": state.parameters}

    def proximal(self, theta_r: FloatArray, hyper: Hyperparameters) -> tuple[float, FloatArray] | None:
        """Return (mu, anchor) of what the local objective has beyond the reconstruction loss: nothing here."""
        return None

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        theta = read_parameters(broadcast, context.trainer.parameter_count)
        state = replace(state, parameters=theta.copy())  # a copy: the array received lies in the message's bytes
        context.observe("global", 1, state, math.nan)  # no epoch, so no loss
        return state


def read_parameters(arrays: Arrays, count: int) -> NDArray[np.float32]:
    """Return the parameter vector (P,) of an upload or a broadcast; ProtocolError unless it is usable."""
    if arrays.keys() != {"parameters"}:
        raise ProtocolError(f"expected 'parameters' alone, got {sorted(arrays)}"[:200])
    theta = arrays["parameters"]
    if theta.dtype != np.float32 or theta.shape != (count,):
        raise ProtocolError(f"parameters must be float32 ({count},), are {theta.dtype}{theta.shape}")
    if not np.isfinite(theta).all():
        raise ProtocolError("parameters hold NaN or infinity")
    return theta
