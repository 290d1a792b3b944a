"""What all commands share: how they start, what they lack, and how they end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end_tools import gca

LACKS = "import sys\nsys.modules[{name!r}] = None"
"""What an import of a package that is not installed meets."""


def test_no_word_at_all_shows_the_help(cli) -> None:
    bare, helped = cli(), cli("--help")
    assert bare == helped and bare.code == 0 and "simulate" in bare.out


def test_an_unknown_command_names_the_one_that_was_meant(cli) -> None:
    said = cli("simulat")
    assert said.code == 2 and "'simulate'" in said.err and said.err.endswith("see gca --help\n")


def test_a_usage_error_points_at_the_help_of_its_command(cli) -> None:
    said = cli("plan", "--colour")
    assert said.code == 2 and said.err.endswith("see gca plan --help\n") and said.err.count("\n") == 1


@pytest.mark.parametrize("words", [("--debug", "plan", "--link", "fast"), ("plan", "--link", "fast", "--debug")])
def test_debug_goes_before_and_after_the_command(words: tuple[str, ...]) -> None:
    done = gca(*words)
    assert done.returncode == 2
    assert "Traceback" in done.stderr and done.stderr.splitlines()[-1].startswith("error: ")


def test_the_environment_asks_for_tracebacks_too(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCA_DEBUG", "1")
    assert "Traceback" in cli("plan", "--link", "fast").err


def test_a_command_without_typer_names_the_mend() -> None:
    done = gca("plan", preamble=LACKS.format(name="typer"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "error: gca plan needs typer, which is not installed; install all it needs: pip install '.[sim]' in gca's "
        "folder\n"
    )


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_without_typer_the_help_says_what_there_is(words: tuple[str, ...]) -> None:
    done = gca(*words, preamble=LACKS.format(name="typer"))
    assert done.returncode == 3
    assert done.stderr.endswith("; without it there are gca device --help and gca doctor --help\n")


def test_ctrl_c_while_the_program_loads_is_a_word_and_no_traceback() -> None:
    class_ = "class Struck:\n    def find_spec(self, name, *_):\n        if name == 'typer': raise KeyboardInterrupt"
    done = gca("plan", preamble=f"import sys\n{class_}\nsys.meta_path.insert(0, Struck())")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("words", [("device", "--help"), ("--debug", "device", "--help")])
def test_a_device_needs_no_typer(words: tuple[str, ...]) -> None:
    done = gca(*words, preamble=LACKS.format(name="typer"))
    assert done.returncode == 0 and done.stdout.startswith("usage: gca device")


def test_doctor_needs_nothing_but_the_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what is missing where almost everything is."""
    for name in ("numpy", "msgspec", "msgpack", "aiomqtt", "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lacking = "\n".join(LACKS.format(name=name) for name in ("typer", "rich"))
    done = gca("doctor", "--broker", "mqtt://127.0.0.1", preamble=lacking)
    lines = {line.split()[1]: line for line in done.stdout.splitlines()}
    assert (done.returncode, done.stderr) == (3, "")
    assert lines["python"].startswith("ok ") and lines["numpy"].startswith("missing  numpy ")
    assert lines["numpy"].endswith("no numpy; pip install . in gca's folder") and lines["broker"].startswith("missing ")
    helped = gca("doctor", "--help", preamble=lacking)
    assert helped.returncode == 0 and "gca doctor --broker mqtt://" in helped.stdout
    wrong = gca("doctor", "--brokre", "x", preamble=lacking)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: unrecognized arguments: --brokre x; see gca doctor --help\n"


def test_a_package_that_a_command_lacks_is_named() -> None:
    done = gca("links", preamble=LACKS.format(name="rich.console"))
    assert done.returncode == 3
    assert done.stderr.startswith("error: gca links needs rich.console, which is not installed;")
    assert done.stderr.count("\n") == 1


FAULTY = """
import sim.links.profiles
def fail(): {fail}
sim.links.profiles.profiles = fail
"""


def test_a_fault_of_ours_is_one_line_that_says_so() -> None:
    done = gca("links", preamble=FAULTY.format(fail="raise ValueError('two\\nlines')"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: a fault in gca itself: ValueError: two lines; run it again with --debug and report it\n"
    )


def test_an_error_alone_in_its_groups_is_told_as_itself() -> None:
    group = "from edge_client.errors import EnvironmentFault; e = EnvironmentFault('no disk; buy one'); "
    done = gca("links", preamble=FAULTY.format(fail=group + "raise ExceptionGroup('a', [ExceptionGroup('b', [e])])"))
    assert (done.returncode, done.stderr) == (3, "error: no disk; buy one\n")


def test_ctrl_c_ends_with_its_code_and_no_traceback() -> None:
    done = gca("links", preamble=FAULTY.format(fail="import os, signal; os.kill(os.getpid(), signal.SIGINT)"))
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("links",), ("links", "--json"), ("--help",)])
def test_a_reader_that_has_gone_is_no_cause_for_a_traceback(words: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as pipe:
        command = [sys.executable, "-m", "sim.cli", *words]
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", ["datasets", "links", "hardware"])
def test_tables_in_a_pipe_are_plain_and_80_wide(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.delenv("GCA_DATA_DIR", raising=False)  # checking large files takes seconds
    done = gca(command)
    table = done.stdout.split("\n\n")[0].splitlines()  # below it are addresses, which are never cut
    assert done.returncode == 0 and "\x1b" not in done.stdout and "…" not in done.stdout
    assert table[0].split()[0] == "name" and max(map(len, table)) <= 80
