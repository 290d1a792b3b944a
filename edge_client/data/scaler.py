"""Means and deviations of the columns of records, in a file that the devices of a run can share.

A device may standardise with its own: then zero is what is usual for that device, whatever its level, and the same
reading may give two devices different codes. With a shared scaler equal readings are equal codes on all devices, as in
the paper, whose records are standardised together; its file holds no record, but it tells means and deviations.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from edge_client.atomic import write_atomically
from edge_client.errors import ConfigError, EnvironmentFault

MAX_BYTES = 16 * 1024**2
Column = Annotated[str, Meta(min_length=1, max_length=1000)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Positive = Annotated[float, Meta(gt=0.0, le=1e300)]


class Scaler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Standardises a value x of a column to (x - mean) / deviation. The columns are in the order of the features."""

    columns: Annotated[tuple[Column, ...], Meta(min_length=1, max_length=65_536)]
    mean: Annotated[tuple[Number, ...], Meta(max_length=65_536)]
    deviation: Annotated[tuple[Positive, ...], Meta(max_length=65_536)]


def read_scaler(path: Path) -> Scaler:
    """Read the JSON file; raises `EnvironmentFault` when it cannot be read, `ConfigError` when it is no scaler."""
    mend = "write it with gca device --csv FILE --write-scaler SCALER"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: larger than any scaler; {mend}")
        scaler = msgspec.json.decode(path.read_bytes(), type=Scaler)
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror or error}; {mend}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no scaler: {error}; {mend}") from None
    if not len(set(scaler.columns)) == len(scaler.columns) == len(scaler.mean) == len(scaler.deviation):
        raise ConfigError(f"{path}: is no scaler: needs a mean and a deviation for each of its columns; {mend}")
    return scaler


def write_scaler(path: Path, scaler: Scaler) -> None:
    """Write the JSON file; raises `EnvironmentFault` when the disk refuses."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(scaler), indent=2), "scaler")
