"""GCA with defences around its codes: what goes up passes them in order, what comes down in reverse. Device half.

The server needs no half of its own: to it they are codes like others. A defended device also chooses among its records
by a seed of its own: from the run's, which the server draws, it could tell which record is behind each code, whatever
is done to codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Arrays, DeviceMethod
from edge_client.methods.context import LocalContext
from edge_client.methods.defences import Defence, defences
from edge_client.methods.gca import read_broadcast
from edge_client.methods.wrapped import Wrapped
from edge_client.model.trainer import ModelState
from edge_client.private_seeds import Secrets


def defended(method: DeviceMethod, hyper: Hyperparameters, secrets: Secrets | None) -> DeviceMethod:
    """Return the method with the run's defences around it; raises `ConfigError` where this device cannot have them."""
    if hyper.code_clip is None and not hyper.code_noise and not hyper.code_rotation:
        return method
    if secrets is None:
        raise ConfigError("training.code_*: this device has no secret, without which codes cannot be defended")
    return Defended(method, defences(hyper, secrets), secrets.seed)


@dataclass(frozen=True)
class Defended(Wrapped):
    """A method that uploads {"latents"} and hears {"centroids", "support"}, with stages around both. Which records it
    draws, and in which order it learns from them, follows from `seed`; where it begins still from the run's."""

    defences: Sequence[Defence]
    seed: int = field(repr=False)

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        state, upload = self.method.before_upload(state, replace(context, seed=self.seed))
        if "latents" not in upload:
            raise ConfigError(f"training.code_*: only codes can be defended so, and {sorted(upload)} are none")
        codes = upload["latents"]
        for defence in self.defences:
            codes = defence.up(codes, context.round)
        return state, {**upload, "latents": codes}

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        centroids, support = read_broadcast(broadcast, context.trainer.latent_dim)
        for defence in reversed(self.defences):
            centroids = defence.down(centroids, context.round)
        broadcast = {"centroids": centroids, "support": support}
        return self.method.after_broadcast(state, replace(context, seed=self.seed), broadcast)
