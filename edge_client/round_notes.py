"""What a device notes of a round while it lasts, and the report that it makes of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from edge_client.clock import Clock
from edge_client.conversation.session import Session
from edge_client.protocol.messages import Evaluation, Telemetry

MAX_DETAIL = 300
"""Characters of a detail that a report has room for."""


@dataclass
class RoundNotes:
    """One round's notes. `spans_s` says by this device's clock when each stage began and ended, `spent_s` what of that
    counts; `unjudged` judges the model that training has shown last."""

    round: int
    outcome: Literal["completed", "late", "rejected", "missed", "idle"] = "completed"
    detail: str = ""
    spent_s: dict[str, float] = field(default_factory=dict)
    spans_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    unjudged: Callable[[], Evaluation] | None = None

    @contextmanager
    def timed(self, clock: Clock, stage: str) -> Iterator[None]:
        """Note the seconds of a stage."""
        begun = clock.now()
        yield
        ended = clock.now()
        self.spent_s[stage], self.spans_s[stage] = ended - begun, (begun, ended)

    def judge(self, clock: Clock) -> None:
        """Judge the model that was shown last, and note what that took."""
        assert self.unjudged is not None
        begun = clock.now()
        self.evaluations.append(self.unjudged())
        self.spent_s["evaluate"] = self.judging_s + clock.now() - begun

    @property
    def judging_s(self) -> float:
        """The seconds that evaluations have taken so far."""
        return self.spent_s.get("evaluate", 0.0)

    def report(self, session: Session, now: float, state_sha256: str) -> Telemetry:
        """Return the report of the round, made at `now`, with all that the session has counted since the last one."""
        spans = {stage: (now - begun, now - ended) for stage, (begun, ended) in self.spans_s.items()}
        return Telemetry(
            run=session.mail.life, round=self.round, device=session.who.device, seq=session.outbox.next_seq(),
            outcome=self.outcome, detail=self.detail[:MAX_DETAIL], spent_s=self.spent_s, spans_s=spans,
            tallies=session.tally.drain(), evaluations=tuple(self.evaluations), ignored=dict(session.mail.ignored),
            state_sha256=state_sha256,
        )  # fmt: skip
