"""What devices report of themselves: which of it is written down. Sans-io."""

from dataclasses import dataclass, field

from edge_client.protocol.messages import MAX_EVALUATIONS, Telemetry

REPORTS = 64
"""Reports of one device on one round: its evaluations in parts, and what it says at the end of the run."""


@dataclass
class _Told:
    """What one process of a device has reported last."""

    instance: str
    seq: int = -1
    round: int = 0
    reports: int = 0
    evaluated: set[tuple[str, int]] = field(default_factory=set)


class Reports:
    """Lets each report through once, in order, and only about rounds that there have been. A report is about the run,
    not part of it: who reports more than that is not believed, and harms nobody."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def admit(self, device: str, instance: str) -> None:
        """Listen to this process of a device from now on; a new one numbers its messages from the start."""
        told = self._told.get(device)
        if told is None or told.instance != instance:
            fresh = _Told(instance)
            if told is not None:  # what its old process has said of a round stands
                fresh.round, fresh.reports, fresh.evaluated = told.round, told.reports, told.evaluated
            self._told[device] = fresh

    def flaw(self, telemetry: Telemetry, last_round: int) -> str | None:
        """Take in a report; return why it is of no use, None if it is."""
        told = self._told.get(telemetry.device)
        if told is None or telemetry.round > last_round:
            return "foreign"
        if telemetry.seq <= told.seq:
            return "duplicate"
        if telemetry.round < told.round:
            return "stale"
        if telemetry.round > told.round:
            told.round, told.reports, told.evaluated = telemetry.round, 0, set()
        told.seq, told.reports = telemetry.seq, told.reports + 1
        instants = [(evaluation.phase, evaluation.epoch) for evaluation in telemetry.evaluations]
        twice = len(set(instants)) < len(instants) or not told.evaluated.isdisjoint(instants)
        if twice or told.reports > REPORTS or len(told.evaluated) + len(instants) > MAX_EVALUATIONS:
            return "duplicate"
        told.evaluated.update(instants)
        return None
