"""What a terminal shows of each device."""

import io

import pytest
from rich.console import Console

from edge_client.protocol.messages import Evaluation, Tally, Telemetry
from sim.screen.fleet_table import SPARE_LINES, FleetTable


def told(device: str, round: int, outcome: str = "completed", accuracy: float | None = 0.75) -> Telemetry:
    """A report of 1,500 bytes up and 300 down, and of telemetry that does not count."""
    tallies = (
        Tally(direction="up", kind="upload", messages=1, message_bytes=1500),
        Tally(direction="down", kind="broadcast", messages=1, message_bytes=300),
        Tally(direction="up", kind="telemetry", messages=1, message_bytes=9999),
    )
    evaluations = () if accuracy is None else (
        Evaluation(phase="align", epoch=1, loss=0.5, threshold=1.0, accuracy=accuracy, auroc=0.5,
                   average_precision=0.5),
    )  # fmt: skip
    return Telemetry(run="r", round=round, device=device, seq=1, outcome=outcome, spent_s={"upload": 2.5},
                     tallies=tallies, evaluations=evaluations, ignored={}, state_sha256="")  # type: ignore[arg-type]  # fmt: skip


def shown(table: FleetTable, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=100, height=height, force_terminal=True, color_system=None)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_nothing_is_shown_of_nobody() -> None:
    assert shown(FleetTable()) == []


def test_devices_known_beforehand_are_there_from_the_start() -> None:
    table = FleetTable(["d1", "d2"])
    assert shown(table)[1].split() == ["d1", "joining", "0", "B", "0", "B", "-", "-"]
    table.opened(1)
    assert [line.split()[1:4] for line in shown(table)[1:]] == [["round", "1:", "training"]] * 2


def test_a_device_goes_through_its_round() -> None:
    table = FleetTable()
    table.opened(1)
    table.uploaded("d1")
    assert shown(table)[1].split() == ["d1", "round", "1:", "uploaded", "0", "B", "0", "B", "-", "-"]
    table.heard(told("d1", 1))
    assert shown(table)[1].split() == ["d1", "round", "1:", "done", "1.5", "kB", "300", "B", "2.5", "s", "75.00", "%"]
    table.opened(2)
    table.heard(told("d1", 1, accuracy=float("nan")))  # told late: the device is at round 2 already
    assert shown(table)[1].split() == ["d1", "round", "2:", "training", "3", "kB", "600", "B", "2.5", "s", "-"]
    table.heard(told("d1", 2, "late", accuracy=None))
    assert "round 2: late" in shown(table)[1]


@pytest.mark.parametrize("height", [1, 24, 60])
def test_a_large_fleet_fits_and_those_behind_come_first(height: int) -> None:
    table = FleetTable()
    table.opened(1)
    for number in range(1000):
        table.heard(told(f"d{number:04d}", 1))
    table.opened(2)
    for number in range(999):
        table.uploaded(f"d{number:04d}")
    lines = shown(table, height)
    assert len(lines) == max(3, height - SPARE_LINES) + 2
    assert any(line.startswith("d0999") and "training" in line for line in lines)
    assert lines[-1] == f"and {1000 - (len(lines) - 2):,} at round 2: uploaded"


def test_a_name_commands_no_terminal() -> None:
    table = FleetTable()
    table.heard(told("\x1b[2J[red]d\n1", 1))
    assert shown(table)[1].startswith("?[2J[red]d?1 ")
