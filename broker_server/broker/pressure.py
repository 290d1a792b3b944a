"""Back-pressure: publishers are not read while a subscriber of theirs has more waiting than it can take.

Rules, each with its reason:

- A publisher is held only by subscribers that it publishes to, so one slow pair stops nobody else.
- Only a *reading* subscriber holds: one that took nothing for `reading_grace` is left to its hard bound instead.
- A subscriber that is itself held by another one takes hold of nobody: its acknowledgements lie unread because of
  us, and clients that publish to each other would otherwise wait for each other in a circle.
- A client that does not read the answers to its own packets is held by itself, measured by unsent bytes only: these
  drain without any packet from it, so it cannot lock itself out.
- A held publisher is let through for one packet every quarter of its keepalive. Its client library gives up when a
  PINGREQ stays unanswered for one keepalive, and that PINGREQ waits behind the unread packets. The price is
  bounded: one packet for each publisher and quarter.
"""

from broker_server.broker.effects import Effect, Pause, Resume
from broker_server.broker.limits import Limits
from broker_server.broker.session import Connection

_PASSES_PER_KEEPALIVE = 4


class Pressure:
    """Decides who is held; appends `Pause` and `Resume` to `effects`."""

    def __init__(self, limits: Limits, effects: list[Effect]) -> None:
        self._limits = limits
        self._effects = effects

    def published(self, publisher: Connection, subscriber: Connection, now: float) -> None:
        """`subscriber` was just given something by `publisher`: hold the publisher if that is too much."""
        if (
            subscriber is not publisher
            and _backlog(subscriber) > self._limits.high_water
            and self._is_reading(subscriber, now)
            and not self._held_by_another(subscriber)
        ):
            self._hold(publisher, subscriber, now)

    def received(self, connection: Connection, now: float) -> None:
        """A packet of `connection` was handled: hold it if it does not read our answers, or again after one pass."""
        if connection.unsent > self._limits.high_water:
            self._hold(connection, connection, now)
        elif connection.held_by and connection.paused_at is None:
            self._pause(connection, now)

    def eased(self, connection: Connection, now: float) -> None:
        """The backlog of `connection` has shrunk: release whom it holds once it is at the low-water mark."""
        if not connection.holds:
            return
        if connection.unsent <= self._limits.low_water:
            self._release(connection, connection, now)
        if _backlog(connection) <= self._limits.low_water:
            self.free_all(connection, now)

    def free_all(self, connection: Connection, now: float) -> None:
        """`connection` holds nobody any more."""
        for publisher in list(connection.holds):
            self._release(publisher, connection, now)

    def forget(self, connection: Connection, now: float) -> None:
        """`connection` is gone."""
        self.free_all(connection, now)
        for subscriber in connection.held_by:
            subscriber.holds.pop(connection, None)
        connection.held_by.clear()

    def tick(self, connection: Connection, now: float) -> None:
        """Release whom a stalled subscriber holds; let a held publisher through for one packet when it is due."""
        if connection.holds and not self._is_reading(connection, now):
            for publisher in list(connection.holds):
                if publisher is not connection:
                    self._release(publisher, connection, now)
        if (due := self.pass_due(connection)) is not None and now >= due:
            self._resume(connection, now)

    def pass_due(self, connection: Connection) -> float | None:
        """When a held publisher is let through for one packet; None if it is not held or needs no keepalive."""
        if connection.paused_at is None or not connection.keepalive:
            return None
        return connection.paused_at + connection.keepalive / _PASSES_PER_KEEPALIVE

    def stall_due(self, connection: Connection) -> float | None:
        """When those whom `connection` holds are released for its not reading; None if it holds nobody else."""
        others = len(connection.holds) - (connection in connection.holds)
        return connection.taken_at + self._limits.reading_grace if others else None

    def _is_reading(self, subscriber: Connection, now: float) -> bool:
        return now - subscriber.taken_at < self._limits.reading_grace

    def _held_by_another(self, connection: Connection) -> bool:
        return any(other is not connection for other in connection.held_by)

    def _hold(self, publisher: Connection, subscriber: Connection, now: float) -> None:
        publisher.held_by.add(subscriber)
        subscriber.holds[publisher] = None
        if publisher.paused_at is None:
            self._pause(publisher, now)

    def _release(self, publisher: Connection, subscriber: Connection, now: float) -> None:
        publisher.held_by.discard(subscriber)
        subscriber.holds.pop(publisher, None)
        if not publisher.held_by and publisher.paused_at is not None:
            self._resume(publisher, now)

    def _pause(self, connection: Connection, now: float) -> None:
        connection.paused_at = now
        self._effects.append(Pause(connection.id))

    def _resume(self, connection: Connection, now: float) -> None:
        connection.paused_at = None
        connection.last_seen = now
        self._effects.append(Resume(connection.id))


def _backlog(connection: Connection) -> int:
    return connection.unsent if connection.session is None else connection.session.backlog
