"""Boards and radios from `configs/hardware.toml`, and from a file of the user's: how fast, how much memory and power.

The environment variable GCA_HARDWARE names that file, which is laid out alike and adds to the other
(`gca hardware calibrate` prints an entry for it).

Units: Hz, bytes, FLOP/s, watts, seconds.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from edge_client.errors import ConfigError
from sim.links.figures import Figure, Origin, choose, read, read_own

OWN = "GCA_HARDWARE"
"""The environment variable that names the user's file."""
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


def is_own(name: str) -> bool:
    """Whether a board is one of the user's own."""
    return name not in read("hardware.toml", _File).boards


def radio(name: str) -> Radio:
    """Return a radio by name; raise a ConfigError that names close matches if there is none."""
    return choose(radios(), name, "radio", f"choose from {', '.join(radios())}")


@cache
def hardwares() -> dict[str, Hardware]:
    """Return every board by name."""
    boards: dict[str, Hardware] = {}
    for where, content in _files():
        for name, entry in content.boards.items():
            _check_new(name, boards, where)
            values, provenance = _resolve(entry, content.sources, f"{where}: boards.{name}")
            boards[name] = msgspec.convert(
                {"name": name, "note": entry.note, **values, "provenance": provenance}, Hardware, strict=False
            )
    return boards


@cache
def radios() -> dict[str, Radio]:
    """Return every radio by name."""
    table: dict[str, Radio] = {}
    for where, content in _files():
        for name, entry in content.radios.items():
            _check_new(name, table, where)
            values, provenance = _resolve(entry, content.sources, f"{where}: radios.{name}")
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
    sources: dict[str, str] = {}
    boards: dict[str, _Board] = {}
    radios: dict[str, _Radio] = {}


def _files() -> list[tuple[str, _File]]:
    """Return what each file says, with its name."""
    found = [("configs/hardware.toml", read("hardware.toml", _File))]
    if own := os.environ.get(OWN):
        found.append((own, read_own(Path(own), _File)))
    return found


def _check_new(name: str, known: Mapping[str, object], where: str) -> None:
    if name in known:
        raise ConfigError(f"{where}: {name}: is a name of ours already; give it another")


def _resolve(entry: _Board | _Radio, sources: dict[str, str], where: str) -> tuple[dict[str, float], dict[str, Origin]]:
    """Return the values that an entry gives, and their origins."""
    given = {field: figure for field in entry.__struct_fields__ if isinstance(figure := getattr(entry, field), Figure)}
    origins = {field: figure.origin(sources, f"{where}.{field}") for field, figure in given.items()}
    return {field: figure.value for field, figure in given.items()}, origins
