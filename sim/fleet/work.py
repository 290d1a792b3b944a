"""Where the local work of a fleet comes from: done, done and recorded, taken from a recording, or left out."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from broker_server.methods.base import ServerMethod
from edge_client.errors import GcaError
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import DeviceMethod
from edge_client.methods.registry import method
from edge_client.model.autoencoder import FloatArray
from edge_client.model.scoring import Labels, Ranking
from edge_client.model.trainer import ModelState, Trainer
from edge_client.protocol.messages import Telemetry
from sim.fleet.shared_scores import SharedScores, scoring_together


class Work(Protocol):
    """What a fleet asks of it. Devices are told apart by name."""

    is_light: bool
    """Whether a phase takes next to no time here, so that threads would only cost."""
    is_done_here: bool
    """Whether models are trained, to be judged, kept and gone on from."""

    @property
    def refusal(self) -> GcaError | None:
        """Why the work cannot be had for this run; None while it can."""
        ...

    def trainer(self, device: str) -> Callable[[Hyperparameters, int], Trainer]:
        """Return a device's choice of trainer."""
        ...

    @property
    def ranking(self) -> Callable[[FloatArray, Labels], Ranking]:
        """How devices rank their test scores."""
        ...

    def method(self, device: str) -> Callable[[str], DeviceMethod]:
        """Return a device's choice of method."""
        ...

    def server(self, method: ServerMethod) -> ServerMethod:
        """Return the server half in whose place this one works."""
        ...

    def told(self, telemetry: Telemetry) -> Telemetry:
        """Return a device's report of a round as it is written down."""
        ...

    def ended(self, device: str, state: ModelState) -> ModelState | None:
        """Return the final model of a device whose life ended with this state; None where there is none."""
        ...

    def speed(self, measured: Callable[[], float]) -> float:
        """Return the FLOP/s of a device whose board's are not known, as measured here now or before."""
        ...


class RealWork:
    """All of it is done; the common test set is judged together (`sim.fleet.shared_scores`)."""

    is_light = False
    is_done_here = True
    refusal: GcaError | None = None

    def __init__(self, test: NDArray[np.floating[Any]] | None) -> None:
        shared = SharedScores(test)
        self._together, self.ranking = scoring_together(shared), shared.ranking

    def trainer(self, device: str) -> Callable[[Hyperparameters, int], Trainer]:
        return self._together

    def method(self, device: str) -> Callable[[str], DeviceMethod]:
        return method

    def server(self, method: ServerMethod) -> ServerMethod:
        return method

    def told(self, telemetry: Telemetry) -> Telemetry:
        return telemetry

    def ended(self, device: str, state: ModelState) -> ModelState | None:
        return state

    def speed(self, measured: Callable[[], float]) -> float:
        return measured()
