"""Whom a round calls for an upload: those drawn as it opens (Algorithm 1, line 3), and who comes back meanwhile.
Sans-io.

The draw is public (`edge_client/cohort.py`): a device that finds itself drawn trains, whether the server thinks of it
or not.
"""

from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.rounds.actions import Action, Note
from broker_server.rounds.collection import Collection
from broker_server.rounds.conduct import Conduct
from broker_server.rounds.members import Members
from edge_client.cohort import draw, sizes, takes_part
from edge_client.protocol.messages import Join, Presence


class Calls:
    """Draws the cohort S_r of each round, and decides on every process that appears while it is open."""

    def __init__(self, plan: RunPlan, method: ServerMethod, members: Members, conduct: Conduct) -> None:
        self._plan, self._method, self._members, self._conduct = plan, method, members, conduct

    def open(self, round: int, now: float) -> Collection:
        """Draw the cohort among those who are there, and return the round."""
        plan, joined, there = self._plan, self._members.joined, self._members.roll_call()
        wanted, size = sizes(len(there), plan.participation, plan.over_selection)
        cohort, chosen = draw(there, size, plan.seed, round)
        asked = {device: joined[device].instance for device in chosen}
        everyone = {device: member.instance for device, member in joined.items()}
        audience = everyone if self._method.broadcasts_to_all else dict(asked)
        left_out = {device: instance for device, instance in everyone.items() if device not in there}
        enough = wanted if plan.over_selection > 1 else None
        return Collection(round, cohort, asked, now, audience, left_out, enough)

    def are_for(self, collection: Collection | None, join: Join) -> bool:
        """Whether the open round is one for the process that asks. (It may hear of the round before it is welcome, as
        the first welcome may have been lost.)"""
        if collection is None or not collection.is_open:
            return False
        return collection.audience.get(join.device) == join.instance

    def started_anew(self, collection: Collection, join: Join) -> list[Action]:
        """Ask a process that comes after another of its device for what the round asked that one for, if it is still to
        come. One that asks what became of a round's upload goes on from what the one before it kept, and if that round
        is this one, knows the model that the upload came from; any other begins with a new model, which the study is
        told. One that takes no part hears the round's broadcast if the one before it would have."""
        device = join.device
        if device not in collection.instances:
            idle = not takes_part(collection.cohort, self._plan.seed, collection.round, device)
            if idle and device in collection.audience:
                collection.audience[device] = join.instance
            return []
        if collection.instances[device] == join.instance:
            return []
        asks_of = join.round if join.awaits == "acceptance" else 0  # 0: of none, as there is no round before 1
        decided = device in collection.accepted or device in collection.rejected
        if not collection.is_open or (decided and asks_of != collection.round):
            collection.give_up(device)  # there is nothing for it in this round
            return []
        collection.ask_again(device, join.instance)
        if asks_of:
            return []
        return [Note(f"round {collection.round}: {device} was started anew and kept nothing: it is asked again, and "
                     "its model is a new one")]  # fmt: skip

    def gone(self, collection: Collection, presence: Presence) -> list[Action]:
        """Wait no longer for a device that has failed, or was stopped in order; but for one that was stopped and
        without which the round cannot count as long as for one that is cut off: it may be being restarted."""
        device, plan = presence.device, self._plan
        others = len(collection.accepted) + len(collection.outstanding.keys() - {device})
        if presence.state == "failed" or others >= plan.quorum or device not in collection.outstanding:
            collection.give_up(device)
            return []
        return [Note(f"round {collection.round}: it does not count without {device}, which has {plan.patience_s:g} s "
                     "to come back")]  # fmt: skip

    def back(self, collection: Collection | None, device: str) -> None:
        """Ask a device for its upload that was left out of the open round because it was away, now that it is here."""
        member = self._members.joined.get(device)
        if collection is None or member is None or not collection.is_open or not self._members.online(device):
            return
        if device in self._conduct.excluded:
            return
        drawn = takes_part(collection.cohort, self._plan.seed, collection.round, device)
        if collection.left_out.pop(device, None) == member.instance and drawn:
            collection.ask(device, member.instance)
