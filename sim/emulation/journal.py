"""Writes a run down while it happens: server records, device telemetry and link counters, into store and display.

The wire ledger belongs to the links. A link's counters are read when its device reports a round, as its own ledgers
end there too: what crossed since the reading before belongs to that round, its broadcast included. All are read when
round 1 opens (what was before belongs to round 0; after a stop likewise, before the round it goes on with) and at the
very end, so the rounds add up to the whole.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from broker_server.study.records import Amendment, Closing, RoundRecord
from broker_server.study.start import Start, save_start
from broker_server.study.store import StudyStore
from edge_client.model.choice import NUMPY, Engine
from edge_client.protocol.messages import Telemetry
from sim.links.proxy import DirectionCounters, LinkCounters

ZERO = DirectionCounters(0, 0, 0, 0)


class Display(Protocol):
    """What a person sees of a running study."""

    def note(self, text: str) -> None: ...

    def round_opened(self, round: int, devices: int) -> None: ...

    def uploaded(self, device: str) -> None: ...

    def heard(self, told: Telemetry) -> None: ...

    def round_done(self, record: RoundRecord, accuracy: float) -> None: ...

    def close(self) -> None: ...


class Journal:
    """The `Sink` of the server and the ear of all devices of one run."""

    def __init__(self, store: StudyStore, run: int, display: Display) -> None:
        self._store, self._run, self._display = store, run, display
        self._records: dict[int, RoundRecord] = {}
        self._heard: dict[int, set[str]] = defaultdict(set)
        self._awaited: dict[int, set[str]] = {}  # of the rounds in `_records`, the devices that have not told yet
        self._accuracy: dict[int, dict[str, float]] = defaultdict(dict)
        self._links: dict[str, LinkCounters] = {}
        self._under_way = False
        self.reported: Callable[[str, int], object] = lambda device, round: None
        """Called when a device's report of a round has been written down."""
        self.read_links: Callable[[int, str | None], object] = lambda round, device: None
        """Called when what has crossed a device's link (None: each) is to be booked to a round."""

    def in_groups(self, facts: int) -> None:
        """Commit so many facts together, or fewer when a round is over."""
        self._store.group = facts

    # ---- the server's sink --------------------------------------------------------------------------------------

    def opened(self, round: int, devices: int) -> None:
        self._display.round_opened(round, devices)
        if not self._under_way:
            self.read_links(round - 1, None)
        self._under_way = True

    def uploaded(self, device: str, round: int) -> None:
        self._display.uploaded(device)

    def record(self, record: RoundRecord) -> None:
        self._store.record_round(self._run, record)
        self._show_earlier(record.round)
        self._records[record.round] = record
        self._awaited[record.round] = set(record.accepted) - self._heard[record.round]
        self._show(record.round)

    def amend(self, amendment: Amendment) -> None:
        self._store.amend_round(self._run, amendment)
        if amendment.late and (record := self._records.get(amendment.round)) is not None:
            missing = tuple(device for device in record.missing if device != amendment.device)
            late = tuple(sorted({*record.late, amendment.device}))
            self._records[amendment.round] = replace(record, missing=missing, late=late)

    def observe(self, telemetry: Telemetry, now: float) -> None:
        """Take a device's report of a round, made at `now`. The last report of a run repeats its last round, for the
        bytes since."""
        self._store.record_telemetry(self._run, telemetry, now)
        self.read_links(telemetry.round, telemetry.device)
        self.reported(telemetry.device, telemetry.round)
        self._display.heard(telemetry)
        self._heard[telemetry.round].add(telemetry.device)
        if telemetry.evaluations:
            self._accuracy[telemetry.round][telemetry.device] = telemetry.evaluations[-1].accuracy
        if telemetry.round in self._awaited:
            self._awaited[telemetry.round].discard(telemetry.device)
            self._show(telemetry.round)

    def checkpoint(self, reached: Start) -> None:
        save_start(self._store.path.parent, reached)

    def closing(self, closing: Closing) -> None:
        self._store.record_closing(self._run, closing)

    def note(self, text: str) -> None:
        self._store.note(self._run, max(self._records, default=0), None, "note", text)
        self._display.note(text)

    def missed_the_end(self, round: int, devices: Sequence[str]) -> None:
        """Write down which devices never got through the end of a run of which all rounds were run: the model that each
        would have ended with is nowhere."""
        for device in devices:
            self._store.note(self._run, round, device, "missed_the_end", "all rounds are over; it left no model behind")
        if devices:
            self.note(f"round {round}: all rounds are over, but {', '.join(devices)} never got through the end of the "
                      "run, and left no model behind")  # fmt: skip

    def trained_by(self, engine: Engine) -> None:
        """Write down what trains: two engines agree, but not to the last bit. A person hears of the slow one."""
        self._store.note(self._run, max(self._records, default=0), None, "note", f"training: {engine}")
        if engine.name == NUMPY:
            self._display.note(f"training: {engine}")

    # ---- the links ----------------------------------------------------------------------------------------------

    def wire(self, round: int, links: dict[str, LinkCounters]) -> None:
        """Book to this round what has crossed each of these links since it was last booked."""
        rows = []
        for device, now in sorted(links.items()):
            before = self._links.get(device)
            for direction in ("up", "down"):
                new: DirectionCounters = getattr(now, direction)
                old: DirectionCounters = getattr(before, direction) if before else ZERO
                rows.append((
                    self._run, round, device, direction,
                    new.stream_bytes - old.stream_bytes, new.wire_bytes - old.wire_bytes,
                    new.segments - old.segments, new.ack_bytes - old.ack_bytes,
                ))  # fmt: skip
            self._links[device] = now
        self._store.record_wires(rows)

    def close(self) -> None:
        """Show the rounds that some device never told of."""
        self._show_earlier(None)
        self._display.close()

    def _show_earlier(self, than: int | None) -> None:
        """Show what is left of the rounds before this one, or of all: what a device has not told by then is not
        waited for, so that rounds are shown in order."""
        for round in sorted(self._records):
            if than is None or round < than:
                self._show(round, complete=False)

    def _show(self, round: int, complete: bool = True) -> None:
        """Show a round once the server and all its accepted devices have told their side."""
        if complete and self._awaited[round]:
            return
        record, judged = self._records[round], self._accuracy[round]
        values = [judged[device] for device in sorted(judged)]
        self._display.round_done(record, sum(values) / len(values) if values else float("nan"))
        del self._records[round], self._awaited[round], self._accuracy[round], self._heard[round]
