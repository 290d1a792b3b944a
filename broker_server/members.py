"""Who is in the run: devices by name, told apart from impostors by the instance of their process."""

from dataclasses import dataclass, replace

from edge_client.protocol.messages import Join, Presence


@dataclass(frozen=True)
class Member:
    """A device that has joined. `elapsed_s` is its slowest way from opening to accepted upload so far."""

    device: str
    instance: str
    samples: int
    input_dim: int
    up_rate: float
    down_rate: float
    joined_s: float
    elapsed_s: float | None = None


class Members:
    """The joined devices, all names ever seen, and which processes are connected at present."""

    def __init__(self) -> None:
        self.joined: dict[str, Member] = {}
        self.known: set[str] = set()
        self._online: dict[str, set[str]] = {}

    def see(self, presence: Presence) -> None:
        """Take in that a process came or went. A last will names its own instance, so an old one harms nobody."""
        self.known.add(presence.device)
        instances = self._online.setdefault(presence.device, set())
        if presence.state == "online":
            instances.add(presence.instance)
        else:
            instances.discard(presence.instance)

    def forget_presence(self) -> None:
        """After the broker was away nobody is known to be online; those who are will say so again."""
        self._online.clear()

    def holder(self, join: Join) -> Member | None:
        """Return the other process that holds this name and is online, if there is one."""
        member = self.joined.get(join.device)
        taken = member and member.instance != join.instance and member.instance in self._online.get(join.device, ())
        return member if taken else None

    def admit(self, join: Join, now: float) -> bool:
        """Write the device down; return True if this process was not known before."""
        known = self.joined.get(join.device)
        if known is not None and known.instance == join.instance:
            return False
        self.joined[join.device] = Member(
            join.device, join.instance, join.samples, join.input_dim, join.up_rate, join.down_rate, now,
            known.elapsed_s if known else None,
        )  # fmt: skip
        return True

    def delivered(self, device: str, elapsed_s: float) -> None:
        """Note how long a device took from the opening of a round to its accepted upload."""
        member = self.joined[device]
        self.joined[device] = replace(member, elapsed_s=max(elapsed_s, member.elapsed_s or 0.0))

    def remove(self, device: str) -> None:
        self.joined.pop(device, None)

    def online(self, device: str) -> bool:
        member = self.joined.get(device)
        return member is not None and member.instance in self._online.get(device, ())

    @property
    def present(self) -> tuple[str, ...]:
        """The devices that have joined and are online, by name."""
        return tuple(sorted(device for device in self.joined if self.online(device)))
