"""Boards and radios from `configs/hardware.toml`: how fast, how much memory, how much power.

Units: Hz, bytes, FLOP/s, watts, seconds.
"""

from collections.abc import Mapping
from functools import cache

import msgspec

from sim.links.figures import Figure, Origin, choose, read

HOST = "host"
"""The machine itself: compute time is measured and not scaled."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """A board. A figure that nobody gave is None; all are None for `host`.

    `slowdown`: training time relative to a Raspberry Pi 5. `training_flops`: effective FLOP/s of large
    float32 models, which small ones do not reach. `hpl_flops`: Linpack in float64.
    """

    name: str
    note: str
    cores: int | None = None
    clock: float | None = None
    memory: int | None = None
    slowdown: float | None = None
    training_flops: float | None = None
    hpl_flops: float | None = None
    idle_power: float | None = None
    active_power: float | None = None
    provenance: Mapping[str, Origin] = {}


class Radio(msgspec.Struct, frozen=True, kw_only=True):
    """A radio's power in watts, and how many seconds it burns `tail` after a burst; None where nobody gave it."""

    name: str
    note: str
    transmit: float
    receive: float
    idle: float | None = None
    sleep: float | None = None
    tail: float | None = None
    tail_seconds: float | None = None
    provenance: Mapping[str, Origin] = {}


def hardware(name: str) -> Hardware:
    """Return a board by name; raise a ConfigError that names close matches if there is none."""
    return choose(hardwares(), name, "hardware", f"choose from {', '.join(hardwares())}")


def radio(name: str) -> Radio:
    """Return a radio by name; raise a ConfigError that names close matches if there is none."""
    return choose(radios(), name, "radio", f"choose from {', '.join(radios())}")


@cache
def hardwares() -> dict[str, Hardware]:
    """Return every board by name."""
    content = read("hardware.toml", _File)
    boards = {}
    for name, entry in content.boards.items():
        values, provenance = _resolve(entry, content.sources, f"boards.{name}")
        boards[name] = msgspec.convert(
            {"name": name, "note": entry.note, **values, "provenance": provenance}, Hardware, strict=False
        )
    return boards


@cache
def radios() -> dict[str, Radio]:
    """Return every radio by name."""
    content = read("hardware.toml", _File)
    table = {}
    for name, entry in content.radios.items():
        values, provenance = _resolve(entry, content.sources, f"radios.{name}")
        table[name] = msgspec.convert({"name": name, "note": entry.note, **values, "provenance": provenance}, Radio)
    return table


class _Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: str
    cores: Figure | None = None
    clock: Figure | None = None
    memory: Figure | None = None
    slowdown: Figure | None = None
    training_flops: Figure | None = None
    hpl_flops: Figure | None = None
    idle_power: Figure | None = None
    active_power: Figure | None = None


class _Radio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: str
    transmit: Figure
    receive: Figure
    idle: Figure | None = None
    sleep: Figure | None = None
    tail: Figure | None = None
    tail_seconds: Figure | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: dict[str, str]
    boards: dict[str, _Board]
    radios: dict[str, _Radio]


def _resolve(entry: _Board | _Radio, sources: dict[str, str], where: str) -> tuple[dict[str, float], dict[str, Origin]]:
    """Return the values that an entry gives, and their origins."""
    given = {field: figure for field in entry.__struct_fields__ if isinstance(figure := getattr(entry, field), Figure)}
    origins = {
        field: figure.origin(sources, f"configs/hardware.toml: {where}.{field}") for field, figure in given.items()
    }
    return {field: figure.value for field, figure in given.items()}, origins
