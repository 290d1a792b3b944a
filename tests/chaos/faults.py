"""What can go wrong in a run, and when: a schedule of faults is a pure function of a seed."""

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "cut", "half-open", "kill", "power", "partition", "delay", "reorder", "duplicate", "corrupt",
    "corrupt broadcast", "server cut", "server kill", "broker", "broker with memory",
    "kill with state",
]  # fmt: skip

HORIZON_S = 14.0
"""Faults begin within this time; an undisturbed run takes about as long."""
PATIENCE_S = 60.0
"""Of the server: what a run must bear without a loss is shorter."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    cut: a connection ends, and both sides know. half-open: the device knows, the broker does not.
    kill: a process dies (the broker sees its socket close); power: a machine does (the broker sees nothing). Both come
    back after `seconds` as a new process that remembers nothing; after 0 seconds: never.
    kill with state: the same, but the new process has what the one before kept after its last round.
    partition, delay: nothing crosses the device's link for `seconds`; what TCP has taken comes afterwards.
    reorder: one of these for each device, at one moment and of unlike length, so senders overtake each other.
    duplicate: for `seconds`, what this device sends or is sent arrives twice.
    corrupt: a byte, `place` of the way into the next message of the device, is another. corrupt broadcast: in the next
    part of a broadcast that comes to it.
    server cut: as cut, for the server. server kill: its process dies, and after `seconds` another goes on with the run
    from what it had written down. broker: it is away for `seconds`, and has forgotten all or (with memory) only
    the connections and what was to be said of them.
    """

    kind: Kind
    at: float
    device: str = ""
    seconds: float = 0.0
    place: float = 0.0

    def __str__(self) -> str:
        who = f" {self.device}" if self.device else ""
        how = f" for {self.seconds:.2f} s" if self.seconds else f" at {self.place:.3f}" if self.place else ""
        return f"{self.at:7.3f} s  {self.kind}{who}{how}"


@dataclass(frozen=True)
class Setting:
    """The run that is disturbed."""

    method: Literal["gca", "fedavg"]
    devices: int
    participation: float
    quorum: int
    rounds: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        return tuple("abcdefgh"[: self.devices])


def setting(seed: int) -> Setting:
    """Return the run that this seed's faults happen to."""
    chance = random.Random(f"setting {seed}")
    devices = chance.choice([4, 6])
    quorum = chance.choice([1, 1, 1, 2])
    return Setting(chance.choice(["gca", "gca", "fedavg"]), devices, chance.choice([1.0, 0.5]), quorum)


def schedule(seed: int) -> tuple[Fault, ...]:
    """Return the faults of this seed, in the order of their beginnings. Every second seed has gentle ones only."""
    chance = random.Random(f"faults {seed}")
    names = setting(seed).names
    kinds = GENTLE if seed % 2 else (*GENTLE, *HARSH)
    found: list[Fault] = []
    for _ in range(chance.randint(1, 8)):
        found += _fault(chance.choice(kinds), chance, names)
    return tuple(sorted(found, key=lambda fault: (fault.at, fault.device)))


GENTLE: tuple[Kind, ...] = (
    "cut", "cut", "half-open", "partition", "delay", "reorder", "duplicate", "server cut", "server kill", "broker",
    "broker with memory", "kill with state",
)  # fmt: skip
HARSH: tuple[Kind, ...] = ("kill", "kill", "power", "power", "partition", "corrupt", "corrupt", "corrupt broadcast")
LONG_S = 2.5
"""A gentle fault is shorter, so that eight of them together keep no device away for two openings of a round."""


def _fault(kind: Kind, chance: random.Random, names: tuple[str, ...]) -> list[Fault]:
    at, device = round(chance.uniform(0.0, HORIZON_S), 3), chance.choice(names)
    match kind:
        case "reorder":
            return [Fault(kind, at, name, round(chance.uniform(0.01, 0.8), 3)) for name in names]
        case "partition":
            longest = chance.choice([LONG_S, LONG_S, 40.0, 200.0])
            return [Fault(kind, at, device, round(chance.uniform(1.0, longest), 3))]
        case "delay" | "duplicate" | "kill with state":
            return [Fault(kind, at, device, round(chance.uniform(0.05, LONG_S), 3))]
        case "kill" | "power":
            return [Fault(kind, at, device, round(chance.choice([0.0, 0.3, 3.0, 30.0]) * chance.uniform(0.5, 1), 3))]
        case "corrupt" | "corrupt broadcast":
            return [Fault(kind, at, device, place=round(chance.random(), 3))]
        case "broker" | "broker with memory" | "server kill":
            return [Fault(kind, at, seconds=round(chance.uniform(0.0, LONG_S), 3))]
        case "server cut":
            return [Fault(kind, at)]
    return [Fault(kind, at, device)]


def gentle(faults: tuple[Fault, ...], of: Setting) -> bool:
    """Whether a run has to come through these without any loss. Where not everyone takes part in every round, rounds go
    by a device that is dead, and of those a server that was killed as well can tell of the last one only."""
    kinds = {fault.kind for fault in faults}
    if of.participation < 1.0 and {"kill with state", "server kill"} <= kinds:
        return False
    return all(fault.kind in GENTLE and fault.seconds <= LONG_S for fault in faults)
