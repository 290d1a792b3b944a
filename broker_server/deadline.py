"""When a round stops waiting: computed from bytes, links and the training seen, never a constant of the code."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker_server.plan import RunPlan


@dataclass(frozen=True)
class Pace:
    """What is known of one device. `elapsed_s`: from opening to accepted upload, in its slowest round so far."""

    samples: int
    upload_bytes: int
    up_rate: float
    elapsed_s: float | None = None

    @property
    def transfer_s(self) -> float:
        """Seconds the upload needs on the declared link; 0 when no rate was declared."""
        return self.upload_bytes * 8 / self.up_rate if self.up_rate else 0.0


def allowance(plan: RunPlan, paces: Mapping[str, Pace], participants: Iterable[str]) -> float | None:
    """Return the seconds a round may take, or None while nothing is known yet.

    A device that delivered before is expected to need as long again. One that never did is judged by the slowest
    that did: training in proportion to its records, then its own upload on its own link.
    """
    if plan.deadline_s != "auto":
        return plan.deadline_s
    seen = [pace for pace in paces.values() if pace.elapsed_s is not None]
    if not seen:
        return None
    per_sample = max(max(0.0, (pace.elapsed_s or 0.0) - pace.transfer_s) / pace.samples for pace in seen)

    def expected(pace: Pace) -> float:
        return pace.elapsed_s if pace.elapsed_s is not None else per_sample * pace.samples + pace.transfer_s

    slowest = max((expected(paces[device]) for device in participants), default=0.0)
    return plan.grace * slowest + plan.patience_s
