"""What the server answers a device that asks where it stands (`Join.awaits`). Sans-io, and without a memory."""

from broker_server.rounds.collection import Collection
from broker_server.rounds.past import Past
from edge_client.protocol.messages import Join, Standing


def standing(join: Join, current: Collection | None, past: Past, *, round: int, running: bool) -> Standing:
    """Return what can be said about what a device awaits.

    `current` is the round that was opened last in this life of the server, `round` is the last of all.
    """
    if join.awaits != "nothing" and join.round > round and running:
        return Standing(join.round, "pending")  # called by an earlier life of this server, and soon to be again
    is_current = current is not None and current.round == join.round
    asked = current if is_current else past.round(join.round)
    match join.awaits:
        case "acceptance":
            return Standing(join.round, "closed") if asked is None else asked.standing(join.device)
        case "broadcast" if past.repeats(join.round):
            return Standing(join.round, "follows")
        case "broadcast":
            return Standing(join.round, "pending" if is_current and running else "gone")
    return Standing(join.round, "nothing")
