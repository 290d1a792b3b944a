"""What the server writes down about a run: plain values, ready for the study's tables."""

from dataclasses import dataclass, field
from typing import Any

from edge_client.protocol.messages import Tally

ENDS_EARLY = "the run ends early: "
"""How the server's note on a run that fails begins; the reason follows."""


@dataclass(frozen=True)
class Misconduct:
    """What a device sent that was of no use, by reason, since it was last written down; how many messages of it were
    not read; and why it was excluded from the round, if it was."""

    device: str
    useless: dict[str, int]
    unread: int = 0
    excluded: str = ""


@dataclass(frozen=True)
class RoundRecord:
    """One finished round. Times are seconds since the run began.

    opened_s: the cohort was called; closed_s: the last upload was in, or the deadline passed; published_s: the
    broadcast was handed to the transport. `tallies` is the server's side of the byte ledgers, per device: what it
    received ("up") and sent ("down") since the previous record.
    `counts` holds how many messages were late, duplicate, stale, foreign, malformed; `diagnostics` what the method
    says about its aggregation.
    """

    round: int
    opened_s: float
    closed_s: float
    published_s: float
    deadline_s: float | None
    accepted: tuple[str, ...]
    late: tuple[str, ...]
    rejected: tuple[str, ...]
    missing: tuple[str, ...]
    tallies: dict[str, tuple[Tally, ...]]
    counts: dict[str, int]
    diagnostics: dict[str, Any] = field(default_factory=dict)
    misconduct: tuple[Misconduct, ...] = ()

    @property
    def participants(self) -> tuple[str, ...]:
        return tuple(sorted({*self.accepted, *self.late, *self.rejected, *self.missing}))


@dataclass(frozen=True)
class Amendment:
    """What came from a device for a round whose record is written already. It belongs to that round, not to the one
    under way; `late` if the device was called missing until then."""

    round: int
    device: str
    late: bool
    tally: Tally
    counts: dict[str, int]


@dataclass(frozen=True)
class Outcome:
    """How a run ended, `ended_s` seconds after it began: `completed` if all rounds were run, else `reason` says why."""

    completed: bool
    rounds: int
    ended_s: float
    reason: str = ""


@dataclass(frozen=True)
class Closing:
    """What came and went after the last round's record: the end of the run, told to devices, and their goodbyes."""

    round: int
    tallies: dict[str, tuple[Tally, ...]]
    counts: dict[str, int]
    misconduct: tuple[Misconduct, ...] = ()


@dataclass(frozen=True)
class AttackRecord:
    """What an attack on one device of a finished run found; see the table `attacks` in `schema.py`."""

    device: str
    attack: str
    knows: str
    round: int
    starts: int
    steps: int
    ntmse: float | None
    excess_cosine: float | None
    details: dict[str, Any] = field(default_factory=dict)
