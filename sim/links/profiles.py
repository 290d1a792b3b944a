"""Named links from `configs/links.toml`, links spelled out on the command line, and what follows from a link.

Rates are bits/s, times seconds, sizes bytes.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from edge_client.errors import ConfigError
from edge_client.transport import pacing
from edge_client.transport.pacing import HEADER, MSS
from sim.links.figures import Figure, Origin, choose, read
from sim.links.link import Change, LinkSpec, Outage
from sim.links.loss import loss_limited_rate
from sim.links.trace import PREFIX, read_trace

LONGEST_ROUND_TRIP = 3600.0


class LinkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The link of one device, both directions, with the origin of each of its figures.

    `up`, `down`: bits/s, None unshaped. `rtt`: round trip without queueing and jitter. `jitter`: largest extra delay
    of one direction. `outages`: (start, end) after the start of the run. `loss`: probability per segment, which caps
    TCP's rate. `mss`, `header`: payload and header bytes of a full segment. `up_changes`, `down_changes`: (second,
    bits/s) from then on, of a trace. `radio`: the entry of `configs/hardware.toml` that gives its power. `duty_cycle`:
    the share of the time that it may be on air, where a rule makes it pause. `half_duplex`: whether only one direction
    transmits at a time. `price`: EUR per MB, None where nobody gave one. Raises ConfigError for values that no link can
    have.
    """

    name: str
    up: float | None
    down: float | None
    rtt: float = 0.0
    jitter: float = 0.0
    outages: tuple[Outage, ...] = ()
    loss: float = 0.0
    mss: int = MSS
    header: int = HEADER
    up_changes: tuple[Change, ...] = ()
    down_changes: tuple[Change, ...] = ()
    radio: str | None = None
    duty_cycle: float = 1.0
    half_duplex: bool = False
    price: float | None = None
    note: str = ""
    provenance: Mapping[str, Origin] = {}

    def __post_init__(self) -> None:
        if self.price is not None and not 0 <= self.price < math.inf:
            raise ConfigError(f"link {self.name}: price {self.price} EUR/MB; give zero or more")
        if not 0 <= self.loss < 1:
            raise ConfigError(f"link {self.name}: loss {self.loss} is no probability; give 0 <= loss < 1")
        if not 0 <= self.rtt <= LONGEST_ROUND_TRIP:
            raise ConfigError(f"link {self.name}: round trip {self.rtt} s; give 0 to {LONGEST_ROUND_TRIP:g} s")
        if self.half_duplex and None in (self.up, self.down):
            raise ConfigError(f"link {self.name}: half duplex, but unshaped; directions that take turns need rates")
        try:
            uplink(self), downlink(self)
        except ConfigError as error:
            raise ConfigError(f"link {self.name}: {error}") from error

    @property
    def sources(self) -> tuple[str, ...]:
        """The addresses that the figures come from, each once."""
        return tuple(dict.fromkeys(url for origin in self.provenance.values() for url in origin.sources))


def uplink(profile: LinkProfile) -> LinkSpec:
    """Return the direction from the device."""
    return _direction(profile, profile.up, profile.up_changes)


def downlink(profile: LinkProfile) -> LinkSpec:
    """Return the direction to the device."""
    return _direction(profile, profile.down, profile.down_changes)


def _direction(profile: LinkProfile, rate: float | None, changes: tuple[Change, ...]) -> LinkSpec:
    limit = loss_limited_rate(profile.loss, profile.rtt, profile.mss + profile.header)
    if limit < math.inf:
        rate = limit if rate is None else min(rate, limit)
        changes = tuple((second, min(changed, limit)) for second, changed in changes)
    return LinkSpec(rate, profile.rtt / 2, profile.jitter, profile.outages, profile.mss, profile.header, changes,
                    profile.duty_cycle)  # fmt: skip


# ---- named -----------------------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    note: str
    up: Figure
    down: Figure
    rtt: Figure
    jitter: Figure | None = None
    loss: Figure | None = None
    mss: Figure | None = None
    header: Figure | None = None
    duty_cycle: Figure | None = None
    half_duplex: Figure | None = None
    price: Figure | None = None
    outages: tuple[Outage, ...] = ()
    radio: str | None = None


class _Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    jitter: Figure
    loss: Figure
    mss: Figure
    header: Figure
    duty_cycle: Figure
    half_duplex: Figure


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: dict[str, str]
    defaults: _Defaults
    links: dict[str, _Entry]


@cache
def profiles() -> dict[str, LinkProfile]:
    """Return every profile of `configs/links.toml` by name, in the file's order."""
    content = read("links.toml", _File)
    return {name: _profile(name, entry, content) for name, entry in content.links.items()}


def profile(name: str) -> LinkProfile:
    """Return a profile by name; raise a ConfigError that names close matches if there is none."""
    return choose(profiles(), name, "link", "see `gca links`, or spell it out: 256kbit/1mbit/100ms")


def _profile(name: str, entry: _Entry, content: _File) -> LinkProfile:
    figures = {field: getattr(entry, field) or getattr(content.defaults, field) for field in _FIGURES}
    if entry.price is not None:
        figures["price"] = entry.price
    values = {field: figure.value for field, figure in figures.items()}
    return LinkProfile(
        name=name,
        up=_rate(values["up"]),
        down=_rate(values["down"]),
        rtt=values["rtt"],
        jitter=values["jitter"],
        outages=entry.outages,
        loss=values["loss"],
        mss=int(values["mss"]),
        header=int(values["header"]),
        radio=entry.radio,
        duty_cycle=values["duty_cycle"],
        half_duplex=bool(values["half_duplex"]),
        price=values.get("price"),
        note=entry.note,
        provenance={
            field: figure.origin(content.sources, f"configs/links.toml: links.{name}.{field}")
            for field, figure in figures.items()
        },
    )


_FIGURES = ("up", "down", "rtt", "jitter", "loss", "mss", "header", "duty_cycle", "half_duplex")


def _rate(value: float) -> float | None:
    return None if value == math.inf else value


# ---- spelled out -----------------------------------------------------------------------------------------------------

_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-z]+)")
_SPELLED_OUT = re.compile(r"[+-]?\.?\d[\d.]*\s*([a-z]*bit.*|/.*|)")
"""What was meant as figures, not as a name: numbers with a unit, in several parts, or bare."""
_RATE_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIME_UNITS = {"ms": 1e-3, "s": 1.0}


def parse_link(text: str) -> LinkProfile:
    """Return the link that `text` spells out as UP[/DOWN][/RTT], such as `256kbit/1mbit/100ms` or `50kbit`.

    One rate serves both directions; without a round trip there is no delay. Raises ConfigError otherwise.
    """
    rates: list[float] = []
    rtt: float | None = None
    for part in text.strip().lower().split("/"):
        match = _QUANTITY.fullmatch(part.strip())
        unit = match[2] if match else ""
        if match and unit in _RATE_UNITS and len(rates) < 2 and rtt is None:
            if float(match[1]) <= 0:
                mend = "write UP/DOWN/ROUNDTRIP such as 256kbit/1mbit/100ms, with rates above 0"
                raise ConfigError(f"link {text!r}: {part!r} carries nothing; {mend}")
            rates.append(float(match[1]) * _RATE_UNITS[unit])
        elif match and unit in _TIME_UNITS and rates and rtt is None:
            rtt = float(match[1]) * _TIME_UNITS[unit]
        else:
            raise ConfigError(
                f"link {text!r}: {part!r} does not fit; write UP/DOWN/ROUNDTRIP such as 256kbit/1mbit/100ms, "
                "with rates in bit, kbit, mbit or gbit and the time in ms or s"
            )
    given = Origin("assumption", note="given by the user")
    return LinkProfile(
        name=text, up=rates[0], down=rates[-1], rtt=rtt or 0.0, provenance=dict.fromkeys(_FIGURES, given)
    )


def link(text: str) -> LinkProfile:
    """Return the link that `text` names, spells out, or has a trace of."""
    if text.startswith(PREFIX):
        return traced_link(text)
    spelled_out = text not in profiles() and _SPELLED_OUT.fullmatch(text.strip().lower())
    return parse_link(text) if spelled_out else profile(text)


def traced_link(text: str) -> LinkProfile:
    """Return the link of a trace, `trace:FILE[/RTT]`, such as `trace:bus.csv/100ms`; without a round trip there is no
    delay."""
    file, _, last = text.removeprefix(PREFIX).rpartition("/")
    spelled = _QUANTITY.fullmatch(last.strip().lower())
    if spelled is None or spelled[2] not in _TIME_UNITS:
        file, rtt = text.removeprefix(PREFIX), 0.0
    else:
        rtt = float(spelled[1]) * _TIME_UNITS[spelled[2]]
    trace = read_trace(Path(file))
    return LinkProfile(
        name=text, up=trace.up, down=trace.down, rtt=rtt, outages=trace.outages, up_changes=trace.up_changes,
        down_changes=trace.down_changes, note=f"measured, from {file}",
    )  # fmt: skip


# ---- what follows from a link ----------------------------------------------------------------------------------------


def chunk_size(profile: LinkProfile) -> int:
    """Return the payload bytes of a chunk on this link; see `edge_client.transport.pacing`."""
    return pacing.chunk_size(_slowest(profile), mss=profile.mss, header=profile.header)


def broadcast_chunk(profile: LinkProfile) -> int:
    """Return the payload bytes of a chunk that the server sends down this link: it knows nothing of it but its rate."""
    return pacing.chunk_size(_slowest_of(downlink(profile)))


def keepalive(profile: LinkProfile, chunk: int) -> int:
    """Return the MQTT keepalive in whole seconds for chunks of `chunk` bytes; see `edge_client.transport.pacing`.

    Raises ConfigError where MQTT allows none that is long enough.
    """
    delays = 2 * (profile.rtt + 2 * profile.jitter)
    try:
        return pacing.keepalive(_slowest(profile), chunk, delays=delays, mss=profile.mss, header=profile.header)
    except ConfigError as error:
        raise ConfigError(f"link {profile.name}: {error}") from None


def _slowest(profile: LinkProfile) -> float | None:
    return pacing.slowest(_slowest_of(uplink(profile)), _slowest_of(downlink(profile)))


def _slowest_of(spec: LinkSpec) -> float | None:
    return pacing.slowest(spec.sustained, *(rate * spec.duty_cycle for _, rate in spec.changes))
