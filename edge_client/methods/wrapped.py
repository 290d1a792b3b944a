"""A method with something around its arrays: in all that a wrapper does not override, it is the method inside."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Arrays, DeviceMethod, Epochs
from edge_client.methods.context import LocalContext
from edge_client.model.trainer import ModelState


@dataclass(frozen=True)
class Wrapped:
    """Another DeviceMethod."""

    method: DeviceMethod

    @property
    def hears_all_broadcasts(self) -> bool:
        return self.method.hears_all_broadcasts

    @property
    def stages(self) -> tuple[str, str]:
        return self.method.stages

    def epochs(self, hyper: Hyperparameters) -> Epochs:
        return self.method.epochs(hyper)

    def initial(self, context: LocalContext) -> ModelState:
        return self.method.initial(context)

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        return self.method.before_upload(state, context)

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        return self.method.after_broadcast(state, context, broadcast)
