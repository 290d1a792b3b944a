"""When a server shows others of its run's name that it is there. Sans-io."""

EVERY_S = 1.0
"""However often somebody asks, there is one sign in this time."""


class SignsOfLife:
    """Gives one sign for all who have asked since the last. `due_s` is when the next one is; None if nobody asks."""

    def __init__(self) -> None:
        self.due_s: float | None = None
        self._earliest_s = float("-inf")
        self._stopped = False

    def stop(self) -> None:
        """Give none any more."""
        self.due_s, self._stopped = None, True

    def asked(self, now: float) -> None:
        """Note that somebody asks."""
        if self.due_s is None and not self._stopped:
            self.due_s = max(now, self._earliest_s)

    def give(self, now: float) -> bool:
        """Whether a sign is due, which is then taken as given."""
        if self.due_s is None or now < self.due_s:
            return False
        self.due_s, self._earliest_s = None, now + EVERY_S
        return True
