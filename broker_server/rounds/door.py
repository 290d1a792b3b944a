"""Who may come in: one process per name, and only records that the run can use. Sans-io.

A second process of a name is either a second device or the first one started anew, and the broker cannot tell: it
misses a machine that lost power only when the keepalive expires. So the holder of the name is asked. If it answers,
the newcomer is refused; if not, the newcomer has the name within seconds.
"""

from collections import Counter

from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.rounds.actions import Action, Note
from broker_server.rounds.herald import Herald
from broker_server.rounds.members import Contest, Member, Members
from broker_server.rounds.width import Width
from edge_client.errors import ConfigError
from edge_client.protocol.messages import Join, Presence


class Door:
    """Decides on `Join`s. Those that it lets in later it returns as they were, to be taken up again."""

    def __init__(self, plan: RunPlan, method: ServerMethod, herald: Herald, members: Members,
                 counts: Counter[str]) -> None:  # fmt: skip
        self._plan, self._method, self._herald, self._members, self._counts = plan, method, herald, members, counts
        self._width = Width(plan, members)
        self._told_of_strangers = False
        self._strangers = 0  # that asked to join

    def refusal(self, join: Join, now: float) -> list[Action]:
        """Return what to tell whom instead of letting a device in; nothing if it may come in now."""
        if (holder := self._members.holder(join)) is not None:
            if self._members.contest(holder, join, now):
                return [self._herald.probe(holder.device, holder.instance)]
            return self._turn_away(holder, join, now)
        if detail := self._unfit(join):
            return self._refuse(join.device, join.instance, join.round, detail)
        return []

    def weigh(self, join: Join | None) -> list[Action]:
        """Settle how wide the run's records are, if that can be said with the sender of `join` (None: with those who
        are there, as no more are waited for), and turn out who came in before that with others."""
        if not self._width.weigh(join):
            dissent = self._width.dissent(join) if join is not None else ""
            return [Note(dissent)] if dissent else []
        told: list[Action] = []
        for member in [m for m in self._members.joined.values() if not self._width.fits(m.input_dim)]:
            has_died = self._members.away(member.device)
            self._members.remove(member.device)
            if has_died and join is not None and join.device == member.device:
                continue  # nobody would hear of it, and the sender takes its place
            told += self._refuse(member.device, member.instance, 0, self._width.objection(member.input_dim))
        self._members.input_dim = self._width.settled
        return told

    @property
    def is_undecided(self) -> bool:
        """Whether devices differ, and who could decide is away."""
        return self._width.settled is None

    def round_opens(self) -> None:
        """Let the width of the run's records stay what it is."""
        self._width.close()

    def stranger(self, join: Join | None) -> list[Action]:
        """Have no room for one more name; tell a person once, and the first of them that ask to join: whoever invents
        names without end must not have the server speak without end."""
        told: list[Action] = []
        if not self._told_of_strangers:
            self._told_of_strangers = True
            told.append(Note(f"more than {self._members.room} device names have appeared: no new one is let in; "
                             "does the broker let strangers write?"))  # fmt: skip
        if join is None or self._strangers >= self._members.room:
            return told
        self._strangers += 1
        return [*told, self._herald.no_room(join)]

    def heard(self, presence: Presence, now: float) -> tuple[list[Action], list[Join]]:
        """Settle what the holder of a name decides by a sign of life, or by going."""
        contests = self._members.settled(presence)
        if presence.state != "online":
            return [], [contest.join for contest in contests]
        return [action for c in contests for action in self._turn_away(c.holder, c.join, now)], []

    def unanswered(self, now: float) -> tuple[list[Action], list[Join]]:
        """Give the names whose holders have not answered to the processes that came after them."""
        contests = self._members.unanswered(now)
        return [action for contest in contests for action in self._dismiss(contest)], [c.join for c in contests]

    def _refuse(self, device: str, instance: str, round: int, detail: str) -> list[Action]:
        """Say to a device that its records are none for this run, and to a person."""
        return [self._herald.reject(device, round, "unfit", detail, instance), Note(f"{device} is refused: {detail}")]

    def _turn_away(self, holder: Member, join: Join, now: float) -> list[Action]:
        """Refuse a second device of one name."""
        self._counts["duplicate_id"] += 1
        detail = (
            f"a device named {join.device} joined {now - holder.joined_s:.0f} s ago and is online; "
            "give this one another id, or stop the other one"
        )
        return [self._herald.reject(join.device, join.round, "duplicate", detail, join.instance), Note(detail)]

    def _dismiss(self, contest: Contest) -> list[Action]:
        """Let go of a holder. Should it be alive after all, it learns so and stops: one take-over, and no war."""
        device = contest.holder.device
        detail = f"another process took over the name {device} while this one did not answer"
        return [
            self._herald.reject(device, contest.join.round, "duplicate", detail, contest.holder.instance),
            Note(f"{device} was started anew: its old process does not answer"),
        ]

    def _unfit(self, join: Join) -> str:
        """Say why a device's records are none for this run; nothing if they are."""
        if not self._width.fits(join.input_dim):
            return self._width.objection(join.input_dim)
        try:
            self._method.upload_limit(join)
        except ConfigError as error:
            return str(error)
        return ""
