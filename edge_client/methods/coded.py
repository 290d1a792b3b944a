"""A method whose arrays travel in a codec: what it uploads is packed, what it receives unpacked. Device half."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from edge_client.codecs import PLAIN, Codec, codec_named
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Arrays, DeviceMethod
from edge_client.methods.context import LocalContext
from edge_client.methods.wrapped import Wrapped
from edge_client.model.trainer import ModelState
from edge_client.protocol.codec import MAX_BODY


def coded(method: DeviceMethod, hyper: Hyperparameters) -> DeviceMethod:
    """Return the method with the run's codecs around it; raises `GcaError` where this machine lacks one."""
    if hyper.upload_codec == hyper.broadcast_codec == PLAIN:
        return method
    return Coded(method, codec_named(hyper.upload_codec), codec_named(hyper.broadcast_codec))


@dataclass(frozen=True)
class Coded(Wrapped):
    """The method with codecs around its arrays."""

    up: Codec
    down: Codec

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        state, upload = self.method.before_upload(state, context)
        return state, self.up.pack(upload)

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        return self.method.after_broadcast(state, context, self.down.unpack(dict(broadcast), MAX_BODY))
