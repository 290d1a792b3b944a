"""Which link and which board each device of a study has: a list of names goes round, in the order of the devices."""

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import TypeVar

from sim.config.hardware import Hardware, hardware
from sim.config.study import Study
from sim.data.partition import device_name, device_number
from sim.links.profiles import LinkProfile, link

POOLED = "pooled"
"""The one that trains on the records of all devices (method "centralized")."""

Names = str | Sequence[str]
T = TypeVar("T")


def device_names(study: Study) -> tuple[str, ...]:
    """Return who trains, in order."""
    if study.method == "centralized":
        return (POOLED,)
    return tuple(device_name(number) for number in range(1, study.devices + 1))


def device_links(study: Study) -> dict[str, LinkProfile]:
    """Return each device's link; raises ConfigError for a name that there is not."""
    return _dealt(device_names(study), [link(name) for name in several(study.link)])


def device_boards(study: Study) -> dict[str, Hardware]:
    """Return each device's board; raises ConfigError for a name that there is not."""
    return _dealt(device_names(study), [hardware(name) for name in several(study.hardware)])


def several(value: Names) -> tuple[str, ...]:
    """Return the names that a key of a study holds, one or a list of them."""
    return (value,) if isinstance(value, str) else tuple(value)


def in_short(value: Names) -> str:
    """Return the names on one line."""
    return ", ".join(several(value))


def name_of(value: Names, device: str) -> str:
    """Return which of the names a device has, by its own name alone; the first where that has no number."""
    names = several(value)
    return names[((device_number(device) or 1) - 1) % len(names)]


def _dealt(devices: Iterable[str], things: Sequence[T]) -> dict[str, T]:
    return dict(zip(devices, cycle(things), strict=False))
