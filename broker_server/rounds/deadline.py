"""When the server stops waiting: computed from bytes, links and the training seen, never a constant of the code."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker_server.plan import RunPlan
from edge_client.protocol.messages import FAREWELL_S
from edge_client.transport.pacing import busy, chunk_size, slowest

ANSWER_S = 5.0
"""How long a device that is alive may take to answer a probe on a link that carries nothing else."""


@dataclass(frozen=True)
class Pace:
    """What is known of one device. `elapsed_s`: from opening to accepted upload, in its slowest round so far."""

    samples: int
    upload_bytes: int
    up_rate: float
    elapsed_s: float | None = None
    broadcast_bytes: int = 0
    down_rate: float = 0.0

    @property
    def transfer_s(self) -> float:
        """Seconds the upload needs on the declared link; 0 when no rate was declared."""
        return self.upload_bytes * 8 / self.up_rate if self.up_rate else 0.0

    @property
    def download_s(self) -> float:
        """Seconds the broadcast needs on the declared link; 0 when no rate was declared."""
        return self.broadcast_bytes * 8 / self.down_rate if self.down_rate else 0.0


def earliest(*moments: float | None) -> float | None:
    """Return the earliest of the moments that there are."""
    return min((moment for moment in moments if moment is not None), default=None)


def allowance(plan: RunPlan, paces: Mapping[str, Pace], participants: Iterable[str]) -> float | None:
    """Return the seconds a round may take, or None while nothing is known yet."""
    found = slowest_participant(plan, paces, participants)
    return None if found is None else found[1]


def slowest_participant(
    plan: RunPlan, paces: Mapping[str, Pace], participants: Iterable[str]
) -> tuple[str | None, float] | None:
    """Return the participant that `allowance` is made for (the last of equals; None if it is made for nobody), and
    that allowance.

    Whatever the others deliver only adds to it, so it need not be computed again before this one has delivered.
    """
    if plan.deadline_s != "auto":
        return None, plan.deadline_s
    expected = _expected(paces)
    if not expected:
        return None
    device, longest = None, 0.0
    for one in participants:
        if expected[one] >= longest:
            device, longest = one, expected[one]
    return device, within_limit(plan, plan.grace * longest + plan.patience_s)


def within_limit(plan: RunPlan, seconds: float) -> float:
    """Return the wait that was computed, or the longest that the plan allows."""
    return min(seconds, plan.deadline_limit_s)


def farewell(plan: RunPlan, paces: Mapping[str, Pace], remaining: Iterable[str]) -> float:
    """Return the seconds that devices may take after the last round: to download its broadcast, to use it, and to say
    goodbye. Judged as their uploads were: an epoch of alignment takes no longer than one of training did.
    """
    return slowest_to_leave(plan, paces, remaining)[1]


def slowest_to_leave(plan: RunPlan, paces: Mapping[str, Pace], remaining: Iterable[str]) -> tuple[str | None, float]:
    """Return the device that `farewell` is made for (the last of equals; None if it is made for nobody), and that
    farewell. Until this one has gone it need not be computed again."""
    if plan.deadline_s != "auto":
        return None, max(FAREWELL_S, plan.patience_s, plan.deadline_s)
    expected = _expected(paces)
    epochs = max(1.0, plan.hyper.align_epochs / max(1, plan.hyper.recon_epochs))
    slowest, longest = None, 0.0
    for device in remaining:
        needs = paces[device].download_s + epochs * expected.get(device, 0.0)
        if needs >= longest:
            slowest, longest = device, needs
    return slowest, max(FAREWELL_S, within_limit(plan, plan.grace * longest + plan.patience_s))


def answer(up_rate: float, down_rate: float) -> float:
    """Return the seconds that a device may take to answer a probe: what is under way on its link goes first."""
    rate = slowest(up_rate, down_rate)
    return ANSWER_S + 2 * busy(rate, chunk_size(rate))


def _expected(paces: Mapping[str, Pace]) -> dict[str, float]:
    """Return the seconds that each device is expected to need from opening to upload; empty while nothing is known.

    A device that delivered before is expected to need as long again. One that never did is judged by the slowest
    that did: training in proportion to its records, then its own upload on its own link.
    """
    seen = [pace for pace in paces.values() if pace.elapsed_s is not None]
    if not seen:
        return {}
    per_sample = max(max(0.0, (pace.elapsed_s or 0.0) - pace.transfer_s) / pace.samples for pace in seen)
    return {
        device: pace.elapsed_s if pace.elapsed_s is not None else per_sample * pace.samples + pace.transfer_s
        for device, pace in paces.items()
    }
