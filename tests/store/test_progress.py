"""What a person sees while a study runs, on a terminal and in a pipe."""

import io
import os
from collections.abc import Callable
from contextlib import suppress

import pytest
from rich.console import Console

from broker_server.study.records import ENDS_EARLY, RoundRecord
from edge_client.protocol.messages import Tally
from sim.emulation.journal import Display
from sim.screen.progress import Lines, Live, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(round: int, **fields: object) -> RoundRecord:
    """A round of 2.5 s in which two devices moved 1,500 bytes up and 300 down."""
    tallies = {
        device: (
            Tally(direction="up", kind="upload", messages=1, message_bytes=750),
            Tally(direction="down", kind="broadcast", messages=1, message_bytes=100),
            Tally(direction="down", kind="control", messages=1, message_bytes=50),
        )
        for device in ("a", "b")
    }
    given = {"accepted": ("a", "b"), "late": (), "rejected": (), "missing": (), "tallies": tallies, "counts": {}}
    return RoundRecord(round, 1.0, 3.0, 3.5, None, **(given | fields))  # type: ignore[arg-type]


def a_run(display: Display) -> None:
    for round in (1, 2):
        display.round_opened(round, 2)
        display.uploaded("a")
        display.uploaded("b")
        display.round_done(record(round), 0.75)
    display.close()


LINE = "round {} of 10: accuracy 0.7500; 2.5 s; 2 of 2 uploads; messages up 1.5 kB, down 300 B"


def test_a_pipe_gets_one_plain_line_per_round() -> None:
    stream = io.StringIO()
    display = progress(stream, 10)
    assert type(display) is Lines
    a_run(display)
    assert stream.getvalue().splitlines() == [LINE.format(" 1"), LINE.format(" 2")]


def test_a_line_says_what_is_missing_and_is_never_broken() -> None:
    stream = io.StringIO()
    done = record(1, accepted=("a",), late=("b", "c"), rejected=("d",), missing=("e", "f", "g"))
    progress(stream, 1).round_done(done, float("nan"))
    assert stream.getvalue() == (
        "round 1 of 1: not evaluated; 2.5 s; 1 of 7 uploads; messages up 1.5 kB, down 300 B; "
        "2 late; 1 rejected; 3 missing\n"
    )


def test_a_round_without_exchange_tells_of_none() -> None:
    stream = io.StringIO()
    progress(stream, 1).round_done(record(1, accepted=(), tallies={}), 0.5)
    assert stream.getvalue() == "round 1 of 1: accuracy 0.5000; 2.5 s\n"


def test_a_reader_that_has_gone_ends_the_run_in_order() -> None:
    """Not by SystemExit out of the middle of it, and what is said on the way out fails no more."""
    ours, theirs = os.pipe()
    os.close(ours)
    stream = os.fdopen(theirs, "w", buffering=1)
    display = progress(stream, 10)
    with pytest.raises(BrokenPipeError):
        display.note("a note")
    display.note("another")
    display.close()
    with suppress(BrokenPipeError):  # what the failed write left in its buffer
        stream.close()


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    display = progress(stream, 10, quiet=True)
    display.note("a note")
    display.note(f"{ENDS_EARLY}interrupted")  # by the person, who knows
    a_run(display)
    assert stream.getvalue() == "" and capsys.readouterr() == ("", "")


def test_quiet_tells_at_once_that_a_run_fails(capsys: pytest.CaptureFixture[str]) -> None:
    display = progress(Terminal(), 10, quiet=True)
    display.note(f"{ENDS_EARLY}d1 failed:\x1b[2J no memory")
    assert capsys.readouterr() == ("", "the run ends early: d1 failed:?[2J no memory\n")


def on_a_terminal(show: Callable[[Display], None]) -> str:
    stream = Terminal()
    display = Live(Console(file=stream, force_terminal=True, width=100), 10)
    show(display)
    return stream.getvalue()


def test_a_terminal_gets_the_same_lines_and_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    said = on_a_terminal(a_run)
    assert LINE.format(" 1") in said and LINE.format(" 2") in said
    assert "rounds" in said and "2/10" in said
    assert said.endswith("\x1b[2K")  # the line of the bar is erased
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 1  # the cursor is back


def test_a_narrow_terminal_breaks_lines_between_words() -> None:
    stream = Terminal()
    display = Live(Console(file=stream, force_terminal=True, width=60, color_system=None), 10)
    display.note(LINE.format(" 1"))
    display.close()
    first, second = (line for line in stream.getvalue().splitlines() if "uploads" in line or "down" in line)
    assert " ".join([first.split("\r")[-1].rstrip(), second.rstrip()]).endswith(LINE.format(" 1"))


def test_the_bar_counts_the_uploads_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def show(display: Display) -> None:
        display.round_opened(3, 40)
        for device in range(17):
            display.uploaded(f"d{device}")
        display.note("draws anew")
        display.close()

    said = on_a_terminal(show)
    assert "round 3: uploads" in said and "17/40" in said


@pytest.mark.parametrize(
    "show", [progress, lambda stream, rounds: Live(Console(file=stream, force_terminal=True), rounds)]
)
def test_what_a_device_says_commands_no_terminal(show: Callable[[io.StringIO, int], Display]) -> None:
    """A last will's detail reaches the notes: no escape, no line break, no markup in it has any effect."""
    stream = io.StringIO()
    display = show(stream, 1)
    display.note("device d1 failed: \x1b]0;owned\x07\nround 1 of 1: [red]forged[/nothing] \x9b2J")
    display.close()
    assert "device d1 failed: ?]0;owned??round 1 of 1: [red]forged[/nothing] ?2J\n" in stream.getvalue()
