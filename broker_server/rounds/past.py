"""Rounds that are over, for devices that come back: whose uploads they were made of, and what they broadcast. Sans-io.

Where a broadcast is for its round's cohort alone, a device that has delivered and was away since has it still to come,
however many rounds have gone by without it. Where all hear every broadcast, the last one stands for all before it; but
whose uploads were accepted is of use there too: a device that died before it could keep what it had learned for one
does that work again, and has its optimiser as it was.
"""

from dataclasses import dataclass

from broker_server.rounds.collection import Collection, over

MOST_BYTES = 1 << 20
"""What is kept of rounds before the last: about so much, however many they are."""
NAME_BYTES = 64
"""Of which each name takes about so much."""


@dataclass(frozen=True)
class Broadcast:
    """A round's broadcast as it travels: `encoded` are its chunks, `size` and `digest` are of its body, `payload` bytes
    of which are tensors."""

    encoded: tuple[bytes, ...]
    size: int
    digest: bytes
    payload: int


class Past:
    """The last round, and as many before it as have room. `latest_only`: of broadcasts, only the last is of use."""

    def __init__(self, latest_only: bool) -> None:
        self._latest_only = latest_only
        self._rounds: dict[int, tuple[Collection, Broadcast | None]] = {}

    def add(self, round: Collection, broadcast: Broadcast | None) -> None:
        """Keep a round; the broadcast of one of an earlier life of the server may be made when it is asked for."""
        self._rounds[round.round] = over(round.round, round.accepted, round.rejected), broadcast
        room = MOST_BYTES
        for number in sorted(self._rounds, reverse=True)[1:]:
            if self._latest_only:
                self._rounds[number] = self._rounds[number][0], None
            room -= self._bytes(number)
            if room < 0:
                del self._rounds[number]

    def round(self, number: int) -> Collection | None:
        """Return what became of the uploads of a round; None if it is not kept."""
        return self._rounds[number][0] if number in self._rounds else None

    def broadcast(self, number: int) -> Broadcast | None:
        """Return what a round broadcast, if that is at hand."""
        return self._rounds[number][1] if number in self._rounds else None

    def repeats(self, number: int) -> bool:
        """Whether the broadcast of a round can be sent again: it is at hand, or can be made."""
        return number in self._rounds and (not self._latest_only or number == max(self._rounds))

    def _bytes(self, number: int) -> int:
        round, broadcast = self._rounds[number]
        names = len(round.accepted) + len(round.rejected)
        return NAME_BYTES * names + (sum(map(len, broadcast.encoded)) if broadcast else 0)
