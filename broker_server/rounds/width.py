"""How many features a record of the run has, where nobody has said so: as many as most devices' have. Sans-io.

The first device to come must not decide for all the others, as it may be the one that was prepared wrongly.
"""

from collections import Counter

from broker_server.plan import RunPlan
from broker_server.rounds.members import Members
from edge_client.protocol.messages import Join
from edge_client.words import counted


class Width:
    """Settled from the start if the plan says it. Else as soon as more than half of the expected devices agree, as many
    have joined as are expected, or no more are waited for: it is that of the most, and of equals that of the first.
    Who is away has no say: it may be being prepared anew. But if all have joined, and it is of another mind, it is
    waited for. Until the first round opens, a width holds no longer than one of those who agreed is there."""

    def __init__(self, plan: RunPlan, members: Members) -> None:
        self._devices, self._members = plan.devices, members
        self.settled = plan.input_dim or plan.start.input_dim
        self._said_by = "as its server was told" if plan.input_dim else "as before the stop"
        self._final = self.settled is not None

    def weigh(self, join: Join | None) -> bool:
        """Count the devices that have joined, and the sender of `join`, which may (None: no more are waited for);
        return True if that has settled it."""
        if not self._final and not self._is_backed(join):
            self.settled = None
        if self.settled is not None:
            return False
        everyone = self._widths(join)
        if not everyone:
            return False
        there = self._widths(join, there_only=True)
        widths = there or everyone
        width, backed = Counter(widths.values()).most_common(1)[0]  # of equals the first
        all_heard = len(everyone) >= self._devices and (len(there) == len(everyone) or len({*everyone.values()}) == 1)
        if join is not None and 2 * backed <= self._devices and not all_heard:
            return False
        self.settled = width
        self._said_by = "as of " + next(device for device, one in widths.items() if one == width)
        return True

    def close(self) -> None:
        """Let it hold from now on: a round opens, and its models are for records of this width."""
        self._final = True

    def fits(self, input_dim: int) -> bool:
        """Whether records of so many features may take part, as far as is known."""
        return self.settled in (None, input_dim)

    def objection(self, input_dim: int) -> str:
        """Say why records of so many features may not, and the mend."""
        return (
            f"its records have {counted(input_dim, 'feature')}, those of this run {self.settled} ({self._said_by}): "
            f"preprocess them alike, or start the server with --features {input_dim}"
        )

    def dissent(self, join: Join) -> str:
        """Say that devices differ, if the sender of `join` is the first of its width, and not of all; else nothing."""
        member = self._members.joined.get(join.device)
        if self.settled is not None or (member is not None and member.input_dim == join.input_dim):
            return ""  # no longer of interest, or said when it came
        others = {device: width for device, width in self._widths(join).items() if device != join.device}
        if not others or join.input_dim in others.values():
            return ""
        ours = f"those of {join.device} have {counted(join.input_dim, 'feature')}"
        theirs = ", ".join(f"of {device} {width}" for device, width in list(others.items())[:3])
        return f"records differ: {ours}, {theirs}; most devices decide, or start the server with --features N"

    def _is_backed(self, join: Join | None) -> bool:
        """Whether a device that has joined and is there, and does not say otherwise by this `join`, has records of this
        width."""
        return any(
            member.input_dim == self.settled
            and (join is None or join.device != device or join.input_dim == self.settled)
            and not self._members.away(device)
            for device, member in self._members.joined.items()
        )

    def _widths(self, join: Join | None, there_only: bool = False) -> dict[str, int]:
        """The features of each device's records, in the order in which the devices came."""
        joined, away = self._members.joined, self._members.away
        widths = {name: one.input_dim for name, one in joined.items() if not (there_only and away(name))}
        return widths if join is None else widths | {join.device: join.input_dim}
