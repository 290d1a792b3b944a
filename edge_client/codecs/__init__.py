"""How arrays are written smaller before they travel: composable stages, each with a sender's and a receiver's half.

    codec = codec_named("int8+zstd")
    received = codec.unpack(codec.pack(arrays), limit)

A stage turns named arrays into named arrays, so stages compose, the wire protocol knows nothing of them, and the
ledgers count what really travels. "float32" is no stage at all. Quantisation comes first, compression last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from edge_client.codecs.float16 import Float16
from edge_client.codecs.int8 import Int8
from edge_client.codecs.zstd import Zstd
from edge_client.errors import ConfigError
from edge_client.protocol.codec import Arrays

PLAIN = "float32"


class Stage(Protocol):
    """One step on the way to the wire, and back. Stateless."""

    def pack(self, arrays: Arrays) -> Arrays:
        """Return what travels; raises `GcaError` for values that it cannot hold."""
        ...

    def unpack(self, arrays: Arrays, limit: int) -> Arrays:
        """Return what was packed, of at most `limit` bytes; raises `ProtocolError` for arrays that nobody packed."""
        ...


@dataclass(frozen=True)
class Codec:
    """Stages in the order in which the sender applies them."""

    stages: Sequence[Stage]

    def pack(self, arrays: Arrays) -> Arrays:
        for stage in self.stages:
            arrays = stage.pack(arrays)
        return arrays

    def unpack(self, arrays: Arrays, limit: int) -> Arrays:
        for stage in reversed(self.stages):
            arrays = stage.unpack(arrays, limit)
        return arrays


_STAGES: dict[str, Stage] = {"float16": Float16(), "int8": Int8(), "zstd": Zstd()}


@lru_cache(maxsize=32)
def codec_named(name: str) -> Codec:
    """Return a codec by name, such as "float32", "int8" or "float16+zstd"; raises `ConfigError` for another."""
    words = name.split("+")
    quantisers = [word for word in words if word in (PLAIN, "float16", "int8")]
    if len(quantisers) != 1 or words[0] != quantisers[0] or words[1:] not in ([], ["zstd"]):
        raise ConfigError(f"codec {name!r}: use float32, float16 or int8, and +zstd behind it if wanted")
    stages = [_STAGES[word] for word in words if word != PLAIN]
    if "zstd" in words:
        _STAGES["zstd"].pack({})  # a machine that lacks it says so before the first round
    return Codec(stages)
