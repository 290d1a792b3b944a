"""Every bound of the broker in one place."""

from dataclasses import dataclass

from edge_client.errors import ConfigError

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds.

    Raises:
        ConfigError: a bound that is not positive, or bounds in the wrong order.
    """

    max_packet_size: int = 64 * MB
    """Larger packets close their connection before the body is read."""
    inflight_window: int = 20
    """QoS 1 messages sent to one client and not yet acknowledged; one PUBACK releases one."""
    high_water: int = 64 * MB
    """Above this backlog of one subscriber, those who publish to it are not read."""
    low_water: int = 32 * MB
    """At this backlog they are read again; the gap keeps reading from flapping."""
    hard_bound: int = 256 * MB
    """A connected subscriber with a larger backlog is disconnected."""
    reading_grace: float = 5.0
    """A subscriber that has taken nothing for so long holds nobody up any more."""
    stall_timeout: float = 60.0
    """A subscriber that has taken nothing for so long, with bytes waiting, is disconnected."""
    offline_messages: int = 1_000_000
    offline_bytes: int = 1_000 * MB
    """What is kept for one absent persistent session; what comes later is dropped, counted and warned about."""
    retained_bytes: int = 256 * MB
    """Topics and payloads of all retained messages together; more is not retained, and counted."""
    connect_timeout: float = 10.0
    """From the opened connection to its CONNECT."""
    max_sessions: int = 20_000
    """Connected clients and kept sessions together; more are refused with return code 3."""
    max_subscriptions: int = 1_000
    """Per session; more are refused in SUBACK."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"broker limit {name} = {getattr(self, name)}: must be above 0")
        if self.inflight_window > 65_535:
            raise ConfigError("broker limit inflight_window: at most 65535, the number of packet identifiers")
        if not self.low_water <= self.high_water <= self.hard_bound:
            raise ConfigError("broker limits: low_water <= high_water <= hard_bound must hold")
