"""Joules of one device, from how long it worked and what crossed its link (Balasubramanian et al., IMC 2009: a radio
goes on burning after each burst, so energy per byte alone is wrong on cellular links).

    transmit = P_tx * t_tx        t_tx = wire bits up / rate, while the radio is on the air
    receive  = P_rx * t_rx        likewise down
    tail     = P_tail * T_tail    once for each burst
    compute  = P_active * (all local work)
    waiting  = P_idle * (catching up + upload + wait) of the board

What nobody has measured is unknown, and is never taken for zero: a sum over the known parts is a lower bound, and
says which parts it lacks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sim.config.devices import device_boards, device_links
from sim.config.hardware import Hardware, Radio, hardware, radio
from sim.config.study import Study
from sim.links.profiles import LinkProfile, link

PARTS = ("transmit", "receive", "tail", "compute", "waiting")
WAITING = ("catch_up", "upload", "wait")
ASIDE = "evaluate"
"""A stage of emulated devices that no device in the field has."""
BURSTS_PER_ROUND = 2
"""An upload and a broadcast. Where they follow each other within the tail this counts one tail too many."""


@dataclass(frozen=True)
class Energy:
    """Joules by part; a part that is None is not known."""

    parts: Mapping[str, float | None]

    @property
    def known(self) -> float:
        """Joules of the parts that are known: a lower bound if any is not."""
        return sum(value for value in self.parts.values() if value is not None)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts that nobody gave a figure for."""
        return tuple(name for name, value in self.parts.items() if value is None)

    @property
    def total(self) -> float | None:
        """Joules, or None where not a single part is known."""
        return None if len(self.unknown) == len(self.parts) else self.known


@dataclass(frozen=True)
class Power:
    """What a device burns, doing what: its link, its board, and its radio where the link names one."""

    link: LinkProfile
    board: Hardware
    radio: Radio | None

    def of_round(self, stages: Mapping[str, float], wire_up: int, wire_down: int) -> Energy:
        """Return the energy of one round: `stages` in seconds, bytes with all headers and acknowledgements.

        A device that moved nothing has burnt no burst.
        """
        board, radio = self.board, self.radio
        up, down = airtime(wire_up, self.link.up), airtime(wire_down, self.link.down)
        bursts = BURSTS_PER_ROUND if wire_up or wire_down else 0
        waiting = sum(stages.get(stage, 0.0) for stage in WAITING)
        working = sum(seconds for stage, seconds in stages.items() if stage not in (*WAITING, ASIDE))
        return Energy({
            "transmit": _product(radio.transmit if radio else None, up),
            "receive": _product(radio.receive if radio else None, down),
            "tail": _product(_product(radio.tail, radio.tail_seconds) if radio else None, float(bursts)),
            "compute": _product(board.active_power, working),
            "waiting": _product(board.idle_power, waiting),
        })  # fmt: skip


def power(link_name: str, board_name: str) -> Power:
    """Return what a device on this link and board burns; raises ConfigError for a name that there is not."""
    return _power(link(link_name), hardware(board_name))


def powers(study: Study) -> dict[str, Power]:
    """Return what each device of a study burns."""
    boards = device_boards(study)
    return {device: _power(profile, boards[device]) for device, profile in device_links(study).items()}


def _power(profile: LinkProfile, board: Hardware) -> Power:
    return Power(profile, board, radio(profile.radio) if profile.radio else None)


def airtime(wire_bytes: int, rate: float | None) -> float | None:
    """Return the seconds that the radio is on for so many bytes; None on a link without a rate."""
    return None if rate is None else wire_bytes * 8 / rate


def per_megabyte(profile: LinkProfile) -> tuple[float | None, float | None]:
    """Return (J/MB up, J/MB down) of a link's radio, tails apart; None where a figure is missing."""
    used = radio(profile.radio) if profile.radio else None
    return (
        _product(used.transmit if used else None, airtime(1_000_000, profile.up)),
        _product(used.receive if used else None, airtime(1_000_000, profile.down)),
    )


def together(energies: Iterable[Energy]) -> Energy:
    """Add up; a part that is unknown in one is unknown in the sum."""
    total: dict[str, float | None] = dict.fromkeys(PARTS, 0.0)
    for energy in energies:
        for name, value in energy.parts.items():
            before = total[name]
            total[name] = None if value is None or before is None else before + value
    return Energy(total)


def _product(one: float | None, other: float | None) -> float | None:
    """Multiply, unless one factor is unknown; nothing at all of the unknown is still nothing."""
    if one == 0.0 or other == 0.0:
        return 0.0
    return None if one is None or other is None else one * other
