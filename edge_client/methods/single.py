"""Training alone (the paper's "Single-Client"): the reconstruction phase of every round, and no word to anybody.

On the pooled records of all devices the same is the paper's "Centralized".
"""

from dataclasses import dataclass

from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Epochs
from edge_client.methods.context import LocalContext, initial_state
from edge_client.methods.gca import reconstruction_phase
from edge_client.model.trainer import ModelState


@dataclass(frozen=True)
class Single:
    """No DeviceMethod, as nothing goes up or comes down; a round is as many epochs as with shared parameters."""

    def epochs(self, hyper: Hyperparameters) -> Epochs:
        return Epochs(hyper.local_epochs, 0)

    def initial(self, context: LocalContext) -> ModelState:
        return initial_state(context)

    def round(self, state: ModelState, context: LocalContext) -> ModelState:
        return reconstruction_phase(state, context, epochs=context.hyper.local_epochs)
