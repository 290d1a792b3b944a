"""A running server's figures for Prometheus, by the official `prometheus-client`: what the study's tables get, as it
comes. Nothing here has a label whose values a device chooses, so no device can make the page grow.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server

from broker_server.plan import RunPlan
from broker_server.rounds.members import Members
from broker_server.server import Sink
from broker_server.study.records import Amendment, Closing, RoundRecord
from broker_server.study.start import Start
from edge_client.errors import EnvironmentFault
from edge_client.methods.registry import method
from edge_client.protocol.messages import Tally, Telemetry

FATES = ("accepted", "late", "rejected", "missing")
SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
"""Bounds of the histograms: a round on a slow link takes hours, one in a rack a tenth of a second."""


class Metrics:
    """A `Sink` that counts what passes through it to another."""

    def __init__(self, plan: RunPlan, sink: Sink) -> None:
        self._sink = sink
        self.registry = at = CollectorRegistry()
        Info("gca_run", "What is run.", registry=at).info({"run": plan.run, "method": plan.method})
        Gauge("gca_rounds_planned", "Rounds of the run.", registry=at).set(plan.rounds)
        self._round = Gauge("gca_round", "The round under way.", registry=at)
        self._cohort = Gauge("gca_cohort_devices", "Devices asked in the round under way.", registry=at)
        self._devices = Gauge("gca_devices", "Devices that have joined.", ["state"], registry=at)
        self._rounds = Counter("gca_rounds_completed", "Rounds recorded.", registry=at)
        self._uploads = Counter("gca_uploads", "Uploads asked for, by what became of them.", ["fate"], registry=at)
        self._ignored = Counter("gca_ignored", "Messages not used, by reason.", ["reason"], registry=at)
        self._messages = Counter("gca_messages", "Messages, up from devices.", ["direction", "kind"], registry=at)
        self._bytes = Counter("gca_bytes", "Bytes, up from devices; payload: tensors alone; message: encoded bodies.",
                              ["ledger", "direction", "kind"], registry=at)  # fmt: skip
        self._phases = Histogram("gca_round_seconds", "Time to collect a round's uploads, and to aggregate them.",
                                 ["phase"], buckets=SECONDS, registry=at)  # fmt: skip
        self._stages = Histogram("gca_device_seconds", "What devices say that a stage of a round took them.",
                                 ["stage"], buckets=SECONDS, registry=at)  # fmt: skip
        self._known_stages = {*method(plan.method).stages, "upload", "wait", "evaluate"}
        for fate in FATES:
            self._uploads.labels(fate)  # there from the start, at zero

    def watch(self, members: Members) -> None:
        """Tell the states of these members from now on; they are counted when somebody asks, on another thread."""

        def online() -> int:
            return sum(members.online(device) for device in list(members.joined))  # the copy is one step

        self._devices.labels("online").set_function(online)
        self._devices.labels("away").set_function(lambda: max(0, len(members.joined) - online()))

    # ---- the server's sink --------------------------------------------------------------------------------------

    def opened(self, round: int, devices: int) -> None:
        self._round.set(round)
        self._cohort.set(devices)
        self._sink.opened(round, devices)

    def record(self, record: RoundRecord) -> None:
        self._rounds.inc()
        for fate in FATES:
            self._uploads.labels(fate).inc(len(getattr(record, fate)))
        self._phases.labels("collect").observe(record.closed_s - record.opened_s)
        self._phases.labels("aggregate").observe(record.published_s - record.closed_s)
        self._count(record.tallies, record.counts)
        self._sink.record(record)

    def amend(self, amendment: Amendment) -> None:
        if amendment.late:  # it was counted as missing, which no counter takes back
            self._uploads.labels("late").inc()
        self._count({amendment.device: (amendment.tally,)}, amendment.counts)
        self._sink.amend(amendment)

    def closing(self, closing: Closing) -> None:
        self._count(closing.tallies, closing.counts)
        self._sink.closing(closing)

    def observe(self, telemetry: Telemetry, now: float) -> None:
        for stage, seconds in telemetry.spent_s.items():
            if stage in self._known_stages and isfinite(seconds) and seconds >= 0:
                self._stages.labels(stage).observe(seconds)
        self._sink.observe(telemetry, now)

    def uploaded(self, device: str, round: int) -> None:
        self._sink.uploaded(device, round)

    def checkpoint(self, reached: Start) -> None:
        self._sink.checkpoint(reached)

    def note(self, text: str) -> None:
        self._sink.note(text)

    def _count(self, tallies: Mapping[str, Iterable[Tally]], counts: Mapping[str, int]) -> None:
        for tally in (one for sheet in tallies.values() for one in sheet):
            labels = (tally.direction, tally.kind)
            self._messages.labels(*labels).inc(tally.messages)
            self._bytes.labels("payload", *labels).inc(tally.payload_bytes)
            self._bytes.labels("message", *labels).inc(tally.message_bytes)
        for reason, count in counts.items():
            if not reason.endswith("_bytes"):
                self._ignored.labels(reason).inc(count)


def require_free(host: str, port: int) -> None:
    """Raise `EnvironmentFault` unless `served` will be able to listen there, before anything is begun."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind((host, port))
    except OSError as error:
        raise _taken(host, port, error) from None


@contextmanager
def served(metrics: Metrics, host: str, port: int) -> Iterator[None]:
    """Answer to GET /metrics on this address; raises `EnvironmentFault` if it cannot be bound."""
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise _taken(host, port, error) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _taken(host: str, port: int, error: OSError) -> EnvironmentFault:
    why = error.strerror or error
    return EnvironmentFault(f"--metrics-port: cannot listen on {host}:{port}: {why}; choose another")
