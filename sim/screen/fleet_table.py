"""What each device of a running study is at, as a table for a terminal."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, nan

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from edge_client.protocol.messages import Telemetry
from sim.screen.units import bytes_text, duration_text
from sim.screen.words import printable

SPARE_LINES = 8
"""Lines of the terminal that the table leaves to what stands above and below it."""
DONE = {"completed": "done", "idle": "not called"}


@dataclass
class _Device:
    """Bytes of messages so far, seconds of the last upload, and the accuracy of the last evaluation."""

    doing: str
    up: int = 0
    down: int = 0
    upload_s: float | None = None
    accuracy: float | None = None


class FleetTable:
    """Takes what the server and the devices tell; shows as many devices as fit, those behind the others first."""

    def __init__(self, expected: Iterable[str] = ()) -> None:
        self._devices = {name: _Device("joining") for name in expected}
        self._round = 0

    def opened(self, round: int) -> None:
        """A round began: whoever is known is at it."""
        self._round = round
        for device in self._devices.values():
            device.doing = f"round {round}: training"

    def uploaded(self, name: str) -> None:
        """A device's upload was accepted."""
        self._device(name).doing = f"round {self._round}: uploaded"

    def heard(self, told: Telemetry) -> None:
        """A device told of a round that is over for it; it may be one behind the server."""
        device = self._device(told.device)
        if told.round >= self._round:
            device.doing = f"round {told.round}: {DONE.get(told.outcome, told.outcome)}"
        for tally in told.tallies:
            if tally.kind != "telemetry":
                device.up += tally.message_bytes if tally.direction == "up" else 0
                device.down += tally.message_bytes if tally.direction == "down" else 0
        if isfinite(took := told.spent_s.get("upload", nan)):
            device.upload_s = took
        if told.evaluations:
            device.accuracy = told.evaluations[-1].accuracy

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        devices = sorted(self._devices.items())  # a copy: the display draws in a thread of its own
        if not devices:
            return
        room = max(3, console.height - SPARE_LINES)
        order = {name: place for place, name in enumerate(("training", "uploaded"))}
        urgent = sorted(devices, key=lambda one: (order.get(one[1].doing.rpartition(": ")[2], 2), one[0]))
        shown = sorted(urgent[:room])
        table = Table("device", "at", box=None, pad_edge=False)
        for name in ("up", "down", "upload", "accuracy"):
            table.add_column(name, justify="right")
        for name, device in shown:
            judged = device.accuracy is not None and device.accuracy == device.accuracy
            table.add_row(
                Text(printable(name)), device.doing, bytes_text(device.up), bytes_text(device.down),
                "-" if device.upload_s is None else duration_text(device.upload_s),
                f"{100 * (device.accuracy or 0.0):.2f} %" if judged else "-",
            )  # fmt: skip
        yield table
        if hidden := urgent[room:]:
            counts = Counter(device.doing for _, device in hidden)
            yield Text("and " + ", ".join(f"{count:,} at {doing}" for doing, count in sorted(counts.items())))

    def _device(self, name: str) -> _Device:
        return self._devices.setdefault(name, _Device(f"round {self._round}: training"))
