"""The wait for devices before round 1, and what a person hears of it. Sans-io."""

from dataclasses import dataclass

from broker_server.plan import RunPlan
from edge_client.words import counted

SAID_EVERY_S = 30.0
"""How often a waiting server says how long it has been waiting."""
NEWS_EVERY_S = 1.0
"""How often it says how many have come, if more or fewer than it said before."""


@dataclass
class Muster:
    """Round 1, or the first after a stop, opens when all expected devices are there, or the time is up and those there
    are enough. The wait begins at `plan.start.seconds`."""

    plan: RunPlan
    said: int = -1
    said_s: float = float("-inf")

    @property
    def until_s(self) -> float:
        """When the time is up."""
        return self.plan.start.seconds + self.plan.joining_s

    def due(self, have: int) -> float:
        """Return when to look again."""
        return min(self.said_s + (SAID_EVERY_S if have == self.said else NEWS_EVERY_S), self.until_s)

    def complete(self, have: int, now: float) -> bool:
        return have >= self.plan.devices or (now >= self.until_s and have >= self.plan.minimum_devices)

    def failure(self, have: int, now: float) -> str:
        """Say why no round will open; nothing while there is hope."""
        if now < self.until_s:
            return ""
        return f"only {have} of {counted(self.plan.minimum_devices, 'device')} joined in {self.plan.joining_s:g} s"

    def news(self, have: int, now: float) -> str:
        """Say how many there are; nothing if that was said only just now."""
        if now < self.due(have):
            return ""
        self.said, self.said_s = have, now
        waited, at_most = now - self.plan.start.seconds, self.plan.joining_s
        return f"waiting: have {have}, need {self.plan.devices}, {waited:.0f} s of {at_most:g} s"
