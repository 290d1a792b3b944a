"""Who is in the run: devices by name, told apart from impostors by the instance of their process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from broker_server.rounds.deadline import answer
from edge_client.protocol.messages import Join, Presence

NEWCOMERS = 4
"""Processes that may wait for one name at a time; whoever comes then is refused at once."""
PROCESSES = 8
"""Of one name that are remembered as online at a time, the latest: only a device that lies has had more."""
NAMES_PER_DEVICE, FEWEST_NAMES = 4, 1000
"""How many names a run has room for: so many for each device expected, and at least so many."""
ABSENCES = 2
"""Rounds that a device may miss the opening of in a row; from the last of them on it is not drawn until it is back."""


def room_for(devices: int) -> int:
    """Return how many names a run of so many devices has room for."""
    return max(FEWEST_NAMES, NAMES_PER_DEVICE * devices)


@dataclass(frozen=True)
class Member:
    """A device that has joined. `elapsed_s` is its slowest way from opening to accepted upload so far, `absences` how
    many rounds in a row were opened while it was away."""

    device: str
    instance: str
    samples: int
    input_dim: int
    up_rate: float
    down_rate: float
    joined_s: float
    elapsed_s: float | None = None
    absences: int = 0


@dataclass(frozen=True)
class Contest:
    """Two processes claim one name: `holder`, who has it, was asked for a sign of life; the sender of `join` gets the
    name at `due_s` if none has come. A machine that lost power is back long before the broker misses it."""

    holder: Member
    join: Join
    due_s: float


class Members:
    """The joined devices, those who have left, and which processes are connected at present; no more than `room` names
    in all. `known` are those who showed presence."""

    def __init__(self, elapsed_s: Mapping[str, float] | None = None, room: int = FEWEST_NAMES) -> None:
        self.joined: dict[str, Member] = {}
        self.known: set[str] = set()
        self.left: set[str] = set()
        self.room = room
        self._names: set[str] = set()
        self.input_dim: int | None = None
        """The width of the records of whoever was admitted last: that of the run, once it is settled (`width.py`)."""
        self._elapsed_s = elapsed_s or {}  # as it was before the server's program was stopped
        self._online: dict[str, dict[str, None]] = {}  # in the order of their signs of life
        self._contests: dict[tuple[str, str], Contest] = {}

    def meet(self, device: str) -> bool:
        """Take note of a name; return False if there is no room for it."""
        if device not in self._names:
            if len(self._names) >= self.room:
                return False
            self._names.add(device)
        return True

    # ---- presence -----------------------------------------------------------------------------------------------

    def see(self, presence: Presence) -> None:
        """Take in that a process came or went. A last will names its own instance, so an old one harms nobody."""
        device = presence.device
        self.known.add(device)
        instances = self._online.setdefault(device, {})
        instances.pop(presence.instance, None)
        if presence.state != "online":
            return
        instances[presence.instance] = None
        if len(instances) > PROCESSES:
            del instances[next(iter(instances))]
        if self.online(device):
            self.joined[device] = replace(self.joined[device], absences=0)

    def forget_presence(self) -> None:
        """After the broker was away nobody is known to be online; those who are will say so again."""
        self._online.clear()
        self._contests.clear()

    def online(self, device: str) -> bool:
        member = self.joined.get(device)
        return member is not None and member.instance in self._online.get(device, ())

    def away(self, device: str) -> bool:
        """Whether a device that has joined is known to be cut off or dead. Of one that a server connected anew has not
        heard of yet, nothing is known."""
        return device in self._online and not self.online(device)

    @property
    def anyone_online(self) -> bool:
        """Whether a device that has joined is online."""
        return any(self.online(device) for device in self.joined)

    def roll_call(self) -> tuple[str, ...]:
        """Note who is away as a round opens, and return who can be drawn for it: all but those who have now been away
        at `ABSENCES` openings in a row. If nobody is left, all can: they may yet come back."""
        for device, member in self.joined.items():
            absences = 0 if self.online(device) else member.absences + 1
            if absences != member.absences:
                self.joined[device] = replace(member, absences=absences)
        there = tuple(device for device, member in self.joined.items() if member.absences < ABSENCES)
        return there or tuple(self.joined)

    # ---- membership ---------------------------------------------------------------------------------------------

    def admit(self, join: Join, now: float) -> bool:
        """Write the device down; return True if this process was not known before."""
        known = self.joined.get(join.device)
        if known is not None and known.instance == join.instance:
            return False
        self.input_dim = join.input_dim
        self.left.discard(join.device)
        self.joined[join.device] = Member(
            join.device, join.instance, join.samples, join.input_dim, join.up_rate, join.down_rate, now,
            known.elapsed_s if known else self._elapsed_s.get(join.device),
        )  # fmt: skip
        return True

    def delivered(self, device: str, elapsed_s: float) -> None:
        """Note how long a device took from the opening of a round to its accepted upload."""
        member = self.joined[device]
        self.joined[device] = replace(member, elapsed_s=max(elapsed_s, member.elapsed_s or 0.0), absences=0)

    @property
    def elapsed_s(self) -> dict[str, float]:
        """How long devices took from the opening of a round to their accepted upload at most, as far as known."""
        return {name: m.elapsed_s for name, m in sorted(self.joined.items()) if m.elapsed_s is not None}

    def remove(self, device: str) -> None:
        if self.joined.pop(device, None) is not None:
            self.left.add(device)

    # ---- two of one name ----------------------------------------------------------------------------------------

    def holder(self, join: Join) -> Member | None:
        """Return the other process that holds this name and is online, if there is one."""
        member = self.joined.get(join.device)
        taken = member and member.instance != join.instance and self.online(join.device)
        return member if taken else None

    def contest(self, holder: Member, join: Join, now: float) -> Contest | None:
        """Let the sender of `join` wait for the holder's sign of life; None if too many wait already."""
        key = join.device, join.instance
        rivals = [contest for contest in self._contests.values() if contest.join.device == join.device]
        if key not in self._contests and len(rivals) >= NEWCOMERS:
            return None
        asked = self._contests.get(key)
        due = asked.due_s if asked and asked.holder.instance == holder.instance else (
            now + answer(holder.up_rate, holder.down_rate)
        )  # fmt: skip
        contest = self._contests[key] = Contest(holder, join, due)
        return contest

    def settled(self, presence: Presence) -> list[Contest]:
        """Return, and forget, the contests that the holder has decided by this sign of life, or by going."""
        return self._close(
            lambda contest: (contest.holder.device, contest.holder.instance) == (presence.device, presence.instance)
        )

    def unanswered(self, now: float) -> list[Contest]:
        """Return, and forget, the contests whose holder has not answered; it counts as gone from now on."""
        due = self._close(lambda contest: now >= contest.due_s)
        for contest in due:
            self._online.get(contest.holder.device, {}).pop(contest.holder.instance, None)
        return due

    @property
    def answer_due_s(self) -> float | None:
        """When the first contest is decided at the latest."""
        return min((contest.due_s for contest in self._contests.values()), default=None)

    def _close(self, decided: Callable[[Contest], bool]) -> list[Contest]:
        over = {key: contest for key, contest in self._contests.items() if decided(contest)}
        for key in over:
            del self._contests[key]
        return list(over.values())
