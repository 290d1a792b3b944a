"""What the server answers a device that asks where it stands (`Join.awaits`). Sans-io, and without a memory."""

from broker_server.collection import Collection
from edge_client.protocol.messages import Join, Standing


def standing(join: Join, current: Collection | None, previous: Collection | None, *, round: int, broadcast_round: int,
             running: bool) -> Standing:  # fmt: skip
    """Return what can be said about what a device awaits.

    `current` and `previous` are the last rounds that were opened in this life of the server, `round` is the last of
    all, and `broadcast_round` that of the broadcast that can be sent again.
    """
    if join.awaits != "nothing" and join.round > round and running:
        return Standing(join.round, "pending")  # called by an earlier life of this server, and soon to be again
    asked = next((c for c in (current, previous) if c and c.round == join.round), None)
    is_current = asked is not None and asked is current
    match join.awaits:
        case "acceptance" if asked is not None:
            return asked.standing(join.device)
        case "acceptance":
            return Standing(join.round, "closed")
        case "broadcast" if broadcast_round == join.round:
            return Standing(join.round, "follows")
        case "broadcast":
            return Standing(join.round, "pending" if is_current and running else "gone")
    return Standing(join.round, "nothing")
