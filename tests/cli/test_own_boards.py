"""Boards of the user's own, and the entry that `gca hardware calibrate` makes for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client.errors import ConfigError
from sim.config.hardware import OWN, hardware, hardwares, radios
from sim.fleet.calibration import board_entry


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of the user's, read anew."""
    path = tmp_path / "boards.toml"
    monkeypatch.setenv(OWN, str(path))
    hardwares.cache_clear(), radios.cache_clear()
    yield path
    hardwares.cache_clear(), radios.cache_clear()


def test_what_calibration_prints_is_a_board(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.write_text(board_entry("my-pi"))
    board = hardware("my-pi")
    assert board.training_flops is not None and board.training_flops > 1e7
    assert board.cores and board.idle_power is None and board.provenance["training_flops"].tag == "derived"
    assert hardware("pi-5").training_flops == 44e9


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[boards.pi-5]\nnote = "mine"\n', "pi-5: is a name of ours already"),
        ("[boards.x]\n", "missing required field `note`"),
        ("[boards", "boards.toml: "),
        ('[boards.x]\nnote = "n"\nclock = { value = 1, tag = "seen" }\n', "boards.x.clock: .*must cite its source"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_its_name(own: Path, text: str, complaint: str) -> None:
    own.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        hardware("pi-5")


def test_a_file_that_is_not_there_is_refused(own: Path) -> None:
    with pytest.raises(ConfigError, match=r"boards\.toml: cannot be read: .* check the path"):
        hardware("pi-5")


def test_the_command_refuses_a_name_that_no_file_can_hold(cli) -> None:
    said = cli("hardware", "calibrate", "--name", "my pi")
    assert said.code == 2 and "--name 'my pi'" in said.err


def test_the_command_prints_an_entry(cli) -> None:
    said = cli("hardware", "calibrate", "--name", "here-2")
    assert said.code == 0 and said.out.startswith("[boards.here-2]\n")
