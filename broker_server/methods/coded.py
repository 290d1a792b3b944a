"""A method whose arrays travel in a codec: what devices upload is unpacked, what they receive packed. Server half.

What is broadcast, kept and continued from is what the devices read, not what was packed: a lossy codec leaves server
and devices with the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker_server.methods.base import Aggregate, Sender, ServerMethod, Upload
from edge_client.codecs import PLAIN, Codec, codec_named
from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol.codec import MAX_BODY, Arrays

FRAMING = 4096
"""Bytes beyond the tensors that a body may have inside a compressed frame."""


def coded(method: ServerMethod, hyper: Hyperparameters) -> ServerMethod:
    """Return the method with the run's codecs around it; raises `GcaError` where this machine lacks one."""
    if hyper.upload_codec == hyper.broadcast_codec == PLAIN:
        return method
    return Coded(method, codec_named(hyper.upload_codec), codec_named(hyper.broadcast_codec))


@dataclass(frozen=True)
class Coded:
    """Another ServerMethod with codecs around its arrays; in all else it is that method."""

    method: ServerMethod
    up: Codec
    down: Codec

    @property
    def broadcasts_to_all(self) -> bool:
        return self.method.broadcasts_to_all

    def upload_limit(self, sender: Sender) -> int:
        """Incompressible bytes grow by less than 1 % in a frame."""
        plain = self.method.upload_limit(sender)
        return plain + plain // 100

    def check(self, sender: Sender, upload: Arrays) -> None:
        self.method.check(sender, self._unpacked(sender, upload))

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None = None) -> Aggregate:
        unpacked = {
            device: replace(upload, arrays=self._unpacked(upload, upload.arrays)) for device, upload in uploads.items()
        }
        result = self.method.aggregate(round, unpacked, previous)
        packed = self.down.pack(result.broadcast)
        return replace(result, broadcast=self.down.unpack(packed, MAX_BODY), packed=packed)

    def _unpacked(self, sender: Sender, upload: Arrays) -> Arrays:
        return self.up.unpack(upload, self.method.upload_limit(sender) + FRAMING)
