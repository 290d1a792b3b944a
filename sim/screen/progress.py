"""What a person sees while a study runs: a live display on a terminal, one plain line per round in a pipe."""

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live as Screen
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from broker_server.study.records import ENDS_EARLY, RoundRecord
from edge_client.protocol.messages import Telemetry
from edge_client.words import counted
from sim.emulation.journal import Display
from sim.screen.fleet_table import FleetTable
from sim.screen.units import bytes_text
from sim.screen.words import printable

SPEED_OVER_S = 3600.0
"""What the time left is told from; a round on a slow link takes minutes."""


def progress(stream: TextIO, rounds: int, *, quiet: bool = False, devices: Iterable[str] = ()) -> Display:
    """Return the display that fits the stream; `devices` are those known beforehand."""
    if quiet:
        return Failures()
    console = _Console(file=stream)
    return Live(console, rounds, devices) if console.is_terminal else Lines(console, rounds)


class _Console(Console):
    """A console whose reader may go, as `head` does: that ends the run, and is no reason to leave it in the middle."""

    def on_broken_pipe(self) -> None:
        self.quiet = True  # nobody reads the rest
        raise BrokenPipeError


class Quiet:
    """Shows nothing."""

    def note(self, text: str) -> None: ...

    def round_opened(self, round: int, devices: int) -> None: ...

    def uploaded(self, device: str) -> None: ...

    def heard(self, told: Telemetry) -> None: ...

    def round_done(self, record: RoundRecord, accuracy: float) -> None: ...

    def close(self) -> None: ...


class Failures(Quiet):
    """Shows at once, on the standard error, that a run fails: until it has ended, and says so itself, its devices may
    need a while."""

    def note(self, text: str) -> None:
        if text.startswith(ENDS_EARLY) and text != f"{ENDS_EARLY}interrupted":
            print(printable(text), file=sys.stderr, flush=True)


class Lines(Quiet):
    """One line per round, and the server's notes."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console, self._rounds = console, rounds

    def note(self, text: str) -> None:
        whole = not self._console.is_terminal  # a pipe gets one line for one, a terminal breaks between words
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=whole)

    def round_done(self, record: RoundRecord, accuracy: float) -> None:
        self.note(_line(record, accuracy, self._rounds))


class Live(Lines):
    """Finished rounds above; below them what each device is at, a bar for the uploads of the round under way, and one
    for the run with the time left."""

    def __init__(self, console: Console, rounds: int, devices: Iterable[str] = ()) -> None:
        super().__init__(console, rounds)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console, speed_estimate_period=SPEED_OVER_S)
        self._run = self._bars.add_task("rounds", total=rounds)
        self._round = self._bars.add_task("waiting for devices", total=None)
        self._fleet = FleetTable(devices)
        self._screen = Screen(Group(self._fleet, self._bars), console=console, transient=True)
        self._screen.start()

    def round_opened(self, round: int, devices: int) -> None:
        self._fleet.opened(round)
        self._bars.reset(self._round, total=devices, description=f"round {round}: uploads")

    def uploaded(self, device: str) -> None:
        self._fleet.uploaded(device)
        self._bars.advance(self._round)

    def heard(self, told: Telemetry) -> None:
        self._fleet.heard(told)

    def round_done(self, record: RoundRecord, accuracy: float) -> None:
        super().round_done(record, accuracy)
        self._bars.update(self._run, completed=record.round)

    def close(self) -> None:
        self._screen.stop()


def _line(record: RoundRecord, accuracy: float, rounds: int) -> str:
    """Say what a round brought and what it took."""
    moved = {"up": 0, "down": 0}
    for sheet in record.tallies.values():
        for tally in sheet:
            moved[tally.direction] += tally.message_bytes
    judged = f"accuracy {accuracy:.4f}" if accuracy == accuracy else "not evaluated"
    parts = [
        f"round {record.round:>{len(str(rounds))}} of {rounds}: {judged}",
        f"{record.published_s - record.opened_s:.1f} s",
    ]
    if record.participants or any(moved.values()):  # else everybody trains alone
        parts.append(f"{len(record.accepted)} of {counted(len(record.participants), 'upload')}")
        parts.append(f"messages up {bytes_text(moved['up'])}, down {bytes_text(moved['down'])}")
    odd = {kind: len(devices) for kind in ("late", "rejected", "missing") if (devices := getattr(record, kind))}
    return "; ".join(parts + [f"{count} {kind}" for kind, count in odd.items()])
