"""float32 arrays as IEEE half precision: half the bytes, 11 significant bits, magnitudes up to 65,504."""

from dataclasses import dataclass

import numpy as np

from edge_client.errors import GcaError, ProtocolError
from edge_client.protocol.codec import Arrays


@dataclass(frozen=True)
class Float16:
    """See the module. Arrays of other dtypes pass as they are."""

    def pack(self, arrays: Arrays) -> Arrays:
        packed = {}
        for name, array in arrays.items():
            with np.errstate(over="ignore"):  # told below
                packed[name] = array.astype(np.float16) if array.dtype == np.float32 else array
            if array.dtype == np.float32 and np.isinf(packed[name]).any():
                raise GcaError(f"{name}: holds values beyond 65,504, the end of float16; use codec float32 or int8")
        return packed

    def unpack(self, arrays: Arrays, limit: int) -> Arrays:
        if any(array.dtype == np.float32 for array in arrays.values()):
            raise ProtocolError("a float32 array where float16 was agreed")
        return {
            name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in arrays.items()
        }
