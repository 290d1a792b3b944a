"""Local work without arithmetic, for runs that ask about the protocol and not about the model.

Models stay as they began and are shared by all devices; codes are drawn from the seed, once for all rounds. Messages
have the sizes, and phases the durations, of the real thing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_server.methods.base import ServerMethod
from edge_client.errors import GcaError
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Arrays, DeviceMethod, Epochs
from edge_client.methods.context import LocalContext
from edge_client.methods.registry import method
from edge_client.model.autoencoder import FloatArray
from edge_client.model.choice import trainer_for
from edge_client.model.scoring import ranking
from edge_client.model.trainer import ModelState, Trainer
from edge_client.protocol.messages import Telemetry
from edge_client.seeds import stream


class SyntheticTrainer:
    """The `Trainer` of one device, with the sizes of a real one. `states` holds the models that devices share."""

    def __init__(self, real: Trainer, seed: int, device: str, states: dict[int, ModelState]) -> None:
        self._real, self._seed, self._device, self._states = real, seed, device, states

    @property
    def latent_dim(self) -> int:
        return self._real.latent_dim

    @property
    def parameter_count(self) -> int:
        return self._real.parameter_count

    @property
    def flops(self) -> float:
        return self._real.flops

    @property
    def encoder_flops(self) -> float:
        return self._real.encoder_flops

    @property
    def block_rows(self) -> int:
        return self._real.block_rows

    def initial(self, rng: np.random.Generator) -> ModelState:
        if self.parameter_count not in self._states:
            self._states[self.parameter_count] = self._real.initial(rng)
        return self._states[self.parameter_count]

    def reconstruct(
        self, state: ModelState, samples: FloatArray, orders: NDArray[np.integer[Any]], **_: object
    ) -> tuple[ModelState, NDArray[np.float64]]:
        return state, np.zeros(len(orders))

    def align(
        self, state: ModelState, samples: FloatArray, orders: NDArray[np.integer[Any]], **_: object
    ) -> tuple[ModelState, NDArray[np.float64]]:
        return state, np.zeros(len(orders))

    def encode(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        rng = stream(self._seed, "synthetic codes", 0, self._device)
        return rng.standard_normal((len(samples), self.latent_dim), np.float32)

    def score(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        return np.zeros(len(samples), np.float32)


class SyntheticMethod:
    """Another DeviceMethod, for one device: it works in its first round only, and uploads the same in all."""

    def __init__(self, real: DeviceMethod) -> None:
        self._real = real
        self._upload: dict[str, NDArray[Any]] | None = None

    @property
    def hears_all_broadcasts(self) -> bool:
        return self._real.hears_all_broadcasts

    @property
    def stages(self) -> tuple[str, str]:
        return self._real.stages

    def epochs(self, hyper: Hyperparameters) -> Epochs:
        return self._real.epochs(hyper)

    def initial(self, context: LocalContext) -> ModelState:
        return self._real.initial(context)

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        if self._upload is None:
            _, self._upload = self._real.before_upload(state, context)
        return state, self._upload

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        return state


class SyntheticWork:
    """The `Work` of a fleet whose models stay as they began."""

    is_light = True
    is_done_here = False
    ranking = staticmethod(ranking)
    refusal: GcaError | None = None

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: dict[int, ModelState] = {}

    def trainer(self, device: str) -> Callable[[Hyperparameters, int], Trainer]:
        return lambda hyper, width: SyntheticTrainer(trainer_for(hyper, width), self._seed, device, self._states)

    def method(self, device: str) -> Callable[[str], DeviceMethod]:
        return lambda name: SyntheticMethod(method(name))

    def server(self, method: ServerMethod) -> ServerMethod:
        return method

    def told(self, telemetry: Telemetry) -> Telemetry:
        return telemetry

    def ended(self, device: str, state: ModelState) -> ModelState | None:
        return None

    def speed(self, measured: Callable[[], float]) -> float:
        return measured()
