"""The device half of a federated method, as the device's life calls it."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.context import LocalContext
from edge_client.model.trainer import ModelState

Arrays = Mapping[str, NDArray[Any]]
"""What crosses the link in either direction: named arrays, which the wire protocol carries as they are."""


class Epochs(NamedTuple):
    """Local epochs of one round on either loss."""

    recon: int
    align: int


class DeviceMethod(Protocol):
    """A round on a device: work, upload, broadcast, work. No topics, sockets or bytes in here.

    Implementations are stateless; all that lives on between rounds is the ModelState.
    """

    @property
    def hears_all_broadcasts(self) -> bool:
        """Whether every device takes in every broadcast, also of rounds it takes no part in.

        So it is where the broadcast is the model that the next round starts from: each of the C devices then
        downloads it in each round, whatever the participation. Such a device trains only on the model that the
        round before ended with; one that missed it asks for it, and sits the round out if the server has none.
        """
        ...

    @property
    def stages(self) -> tuple[str, str]:
        """Names of the work before the upload and after the broadcast, for telemetry and errors."""
        ...

    def epochs(self, hyper: Hyperparameters) -> Epochs:
        """Return the local epochs of a round, reconstruction before the upload and alignment after the broadcast."""
        ...

    def initial(self, context: LocalContext) -> ModelState:
        """Return the state before round 1."""
        ...

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        """Work on local records; return the new state and the arrays to upload.

        Raises ConfigError when the device's records or settings do not allow the work.
        """
        ...

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        """Take in what the server sent and return the state that ends the round.

        Raises ProtocolError, before anything is used, when the broadcast is not what the method expects.
        """
        ...
