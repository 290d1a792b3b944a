"""By which a server knows its own announcements when the broker brings them back: by what it said. Sans-io.

Not by the run's name: whoever copies a study's folder and goes on with both has two servers that speak under one.
"""

from edge_client.protocol.messages import RoundState

KEPT = 64
"""Announcements that are remembered. What is older than these is taken for an echo that was long on its way."""


class Echoes:
    """What this server has announced of late, by its number."""

    def __init__(self) -> None:
        self._said: dict[int, bytes] = {}

    def say(self, message: RoundState, payload: bytes) -> None:
        """Note an announcement."""
        self._said[message.seq] = payload
        if len(self._said) > KEPT:
            del self._said[next(iter(self._said))]

    def holds(self, message: RoundState, payload: bytes) -> bool:
        """Whether this is an announcement of this server, as far as it remembers."""
        said = self._said.get(message.seq)
        return payload == said if said is not None else message.seq < min(self._said, default=0)
