"""Which life of which server a message belongs to: `run` in the envelope is NAME.INCARNATION[.LIFE].

The incarnation (8 hex digits) is drawn when a run begins, so that what an older run of the same name left behind fits
nothing. A server that goes on with a run after its program was stopped keeps the incarnation and counts its lives: 1,
2, ... after a dot, so that the numbers of its messages may begin anew. The first life has no number, and costs no byte.
"""

import re
from typing import NamedTuple

LIFE = re.compile(r"([0-9a-f]{8})(?:\.([1-9][0-9]{0,5}))?\Z")
MAX_LIFE = 999_999


class Life(NamedTuple):
    """One life of the server of one run."""

    incarnation: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.number}" if self.number else self.incarnation

    def goes_on_from(self, other: "Life") -> bool:
        """Whether this is a later life of the same run."""
        return self.incarnation == other.incarnation and self.number > other.number


def in_any_life(name: str, run: str) -> str:
    """Return what all lives of the server that `name` tells of have in common, NAME.INCARNATION: it names the run, and
    no other one ever; `name` itself if it tells of no life."""
    life = life_in(name, run)
    return name if life is None else f"{run}.{life.incarnation}"


def life_in(name: str, run: str) -> Life | None:
    """Return the life that `name`, the run as messages name it, tells; None if it is the bare run's name, or not one of
    this run."""
    head, _, tail = name.partition(f"{run}.")
    found = LIFE.match(tail) if head == "" else None
    return None if found is None else Life(found[1], int(found[2] or 0))
