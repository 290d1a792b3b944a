"""Topic names under `gca/v1/<run>/` and their one parser.

| topic                        | from   | holds       |
|------------------------------|--------|-------------|
| pres/<device>                | device | Presence    |
| join/<device>                | device | Join        |
| up/<device>/<round>/<index>  | device | Chunk       |
| met/<device>                 | device | Telemetry   |
| round                        | server | RoundState  |
| bc/<round>/<index>           | server | Chunk       |
| dn/<device>/welcome ...      | server | Welcome, Accept, Reject, Probe; bc/<round>/<index>: Chunk |
| dn/server/probe, sign        | server | Probe, RoundState: for other servers of the run's name |
"""

import re

from msgspec import Struct

from edge_client.errors import ProtocolError
from edge_client.protocol.messages import (
    NAME,
    SERVER,
    Accept,
    Chunk,
    Header,
    Join,
    Presence,
    Probe,
    Reject,
    RoundState,
    Telemetry,
    Welcome,
)

ROOT = "gca/v1"

_FROM_DEVICE: dict[str, type[Header]] = {"pres": Presence, "join": Join, "met": Telemetry}
_TO_DEVICE: dict[str, type[Header]] = {"welcome": Welcome, "accept": Accept, "reject": Reject, "probe": Probe}


class Address(Struct, frozen=True, gc=False):
    """What a topic says: the message type, and the device, round and chunk where it has them."""

    kind: type[Header]
    device: str | None = None
    round: int | None = None
    index: int | None = None


def presence(run: str, device: str) -> str:
    return f"{ROOT}/{run}/pres/{device}"


def join(run: str, device: str) -> str:
    return f"{ROOT}/{run}/join/{device}"


def telemetry(run: str, device: str) -> str:
    return f"{ROOT}/{run}/met/{device}"


def upload(run: str, device: str, round: int, index: int) -> str:
    return f"{ROOT}/{run}/up/{device}/{round}/{index}"


def round_state(run: str) -> str:
    return f"{ROOT}/{run}/round"


def broadcast(run: str, round: int, index: int) -> str:
    return f"{ROOT}/{run}/bc/{round}/{index}"


def sign_of_life(run: str) -> str:
    """Return the topic on which a server shows other servers of its run's name, and no device, that it is there."""
    return f"{ROOT}/{run}/dn/{SERVER}/sign"


def down(run: str, device: str, verb: str) -> str:
    """Return the topic of one device's `verb`: welcome, accept, reject or probe."""
    return f"{ROOT}/{run}/dn/{device}/{verb}"


def catch_up(run: str, device: str, round: int, index: int) -> str:
    return f"{ROOT}/{run}/dn/{device}/bc/{round}/{index}"


def device_filters(run: str, device: str) -> tuple[str, ...]:
    """Return what every device listens to; the broadcast is subscribed to only by those in the cohort."""
    return (f"{ROOT}/{run}/round", f"{ROOT}/{run}/dn/{device}/#")


def broadcast_filter(run: str) -> str:
    return f"{ROOT}/{run}/bc/+/+"


def server_filters(run: str) -> tuple[str, ...]:
    return tuple(f"{ROOT}/{run}/{part}" for part in ("pres/+", "join/+", "met/+", "up/+/+/+"))


def parse(topic: str, run: str) -> Address:
    """Return the address a topic of this run means; raises `ProtocolError` for any other topic."""
    head, _, rest = topic.partition(f"{ROOT}/{run}/")
    match rest.split("/") if head == "" else []:
        case ["pres" | "join" | "met" as kind, device]:
            return Address(_FROM_DEVICE[kind], _name(device))
        case ["up", device, round, index]:
            return Address(Chunk, _name(device), _number(round), _number(index))
        case ["round"]:
            return Address(RoundState)
        case ["bc", round, index]:
            return Address(Chunk, None, _number(round), _number(index))
        case ["dn", device, "bc", round, index]:
            return Address(Chunk, _name(device), _number(round), _number(index))
        case ["dn", device, "sign"] if device == SERVER:
            return Address(RoundState)
        case ["dn", device, verb] if verb in _TO_DEVICE:
            return Address(_TO_DEVICE[verb], _name(device))
    raise ProtocolError(f"topic {topic[:200]!r} is not one of run {run!r}")


def _name(text: str) -> str:
    if not re.search(NAME, text):
        raise ProtocolError(f"{text[:80]!r} in a topic is not the name of a device")
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ProtocolError(f"{text[:20]!r} in a topic is not a number")
    return int(text)
